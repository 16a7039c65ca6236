"""Time to the first token over gRPC and over the HTTP gateway, in turn, of the bundled target.

Every request has the same prompt, which is in the cache: what is left is one round, and the way.
There is no draft, which would only take turns with the target on its cores.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time

from benchmarks.generations import PROMPTS
from benchmarks.processes import TARGET
from outrider.client import Delta, OutriderClient, Request
from outrider.model_service.config import ModelOptions
from outrider.processes import ANY_PORT
from outrider.sampling import GREEDY
from outrider_cli.services.local import HostedModel, LocalPlan, local_services

WARM_UPS, PAIRS, TOKENS = 10, 200, 4


async def main() -> None:
    """Measure and print."""
    target = HostedModel(TARGET, ModelOptions())
    plan = LocalPlan(target=target, draft=None, orchestrator=(f"--http={ANY_PORT}",))
    async with (
        local_services(plan) as services,
        OutriderClient(await services.start()) as client,
    ):
        stream = await _HttpStream.open(await services.http_address())
        pairs = []
        for i in range(WARM_UPS + PAIRS):
            # Either is first in half of the pairs.
            if i % 2:
                direct = await _direct_seconds(client)
                pairs.append((direct, await stream.seconds()))
            else:
                over_http = await stream.seconds()
                pairs.append((await _direct_seconds(client), over_http))
        stream.close()
    _print(pairs[WARM_UPS:])


async def _direct_seconds(client: OutriderClient) -> float:
    begin, first = time.perf_counter(), 0.0
    options = Request(PROMPTS[0], token_limit=TOKENS, sampling=GREEDY)
    async for event in client.generate(options):
        if isinstance(event, Delta) and not first:
            first = time.perf_counter() - begin
    return first


class _HttpStream:
    """A connection that asks for the same stream again and again, at next to no cost of its own."""

    def __init__(
        self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self._writer = writer
        fields = {"prompt": PROMPTS[0], "n_predict": TOKENS, "temperature": 0, "stream": True}
        body = json.dumps(fields)
        self._request = (
            f"POST /completion HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        ).encode()

    @classmethod
    async def open(cls, address: str) -> _HttpStream:
        """Connect."""
        host, _, port = address.rpartition(":")
        return cls(address, *await asyncio.open_connection(host, int(port)))

    async def seconds(self) -> float:
        """Return the seconds to the first event; read the others too."""
        begin = time.perf_counter()
        self._writer.write(self._request)
        await self._reader.readuntil(b"data: ")
        seconds = time.perf_counter() - begin
        await self._reader.readuntil(b"\r\n0\r\n\r\n")
        return seconds

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()


def _print(pairs: list[tuple[float, float]]) -> None:
    for i, name in enumerate(("gRPC", "HTTP")):
        seconds = [pair[i] for pair in pairs]
        print(f"first token over {name}, median  {_milliseconds(seconds)}, {len(seconds)} requests")
    print(f"HTTP beyond gRPC, median       {_milliseconds([b - a for a, b in pairs])}")


def _milliseconds(seconds: list[float]) -> str:
    low, middle, high = (1e3 * each for each in statistics.quantiles(seconds, n=4))
    return f"{middle:.2f} ms (quartiles {low:.2f} - {high:.2f})"


if __name__ == "__main__":
    asyncio.run(main())
