"""Whether a message between processes of one machine takes less over a Unix socket than over TCP.

python -m benchmarks.unix_sockets
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
from contextlib import AsyncExitStack
from tempfile import TemporaryDirectory

from benchmarks.echo import EchoClient
from outrider.processes import ANY_PORT, Child

_WARM_UP, _PIECE = 50, 20
_RESAMPLES = 2000


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, help="of 20 echoes over each")
    parser.add_argument("--size", type=int, default=64, help="bytes of a message")
    parser.add_argument("--apart-ms", type=float, default=0.0, help="between two echoes")
    arguments = parser.parse_args()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        socket = f"unix:{folder}/echo"
        # One process for both, so that they share what the machine does to it.
        command = (sys.executable, "-m", "benchmarks.echo")
        child = await Child.start(command, "echo", ANY_PORT, (socket,))
        stack.push_async_callback(child.stop)
        clients = {"tcp": EchoClient(await child.address()), "unix": EchoClient(socket)}
        for client in clients.values():
            stack.push_async_callback(client.close)
        for client in clients.values():
            await _echoes(client, arguments, _WARM_UP)
        pairs = [await _pair(clients, arguments) for _ in range(arguments.rounds)]
    _print(pairs)


async def _pair(
    clients: dict[str, EchoClient], arguments: argparse.Namespace
) -> tuple[float, float]:
    """Return the median over TCP and over the Unix socket, taken one after the other."""
    order = random.sample(list(clients), len(clients))
    found = {kind: await _echoes(clients[kind], arguments, _PIECE) for kind in order}
    return found["tcp"], found["unix"]


async def _echoes(client: EchoClient, arguments: argparse.Namespace, count: int) -> float:
    seconds = []
    for _ in range(count):
        seconds.append(await client.round_trip(arguments.size))
        if arguments.apart_ms:
            await asyncio.sleep(arguments.apart_ms / 1e3)
    return statistics.median(seconds)


def _print(pairs: list[tuple[float, float]]) -> None:
    for kind, values in zip(("tcp", "unix"), zip(*pairs, strict=True), strict=True):
        print(f"{kind:<5} {1e6 * statistics.median(values):.0f} us an echo in the median")
    ratios = [unix / tcp for tcp, unix in pairs]
    draws = sorted(
        statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES)
    )
    low, high = draws[int(0.025 * _RESAMPLES)], draws[int(0.975 * _RESAMPLES)]
    print(f"unix over tcp: {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    asyncio.run(main())
