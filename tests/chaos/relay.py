"""Passes TCP on, from inside a network namespace: -m tests.chaos.relay HOST TO_HOST TO_PORT."""

from __future__ import annotations

import asyncio
import sys

from tests.chaos.links import TcpWay


async def main(host: str, to_host: str, to_port: str) -> None:
    """Print the port, and pass on until stdin ends."""
    way = TcpWay((to_host, int(to_port)), host)
    await way.start()
    print(way.port, flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
