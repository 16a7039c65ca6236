"""Submits jobs, takes what they bring as it comes, and cancels the last one.

Start `outrider up`, then: python examples/jobs.py [HOST:PORT]
"""

import asyncio
import sys

from outrider.client import Delta, Finished, OutriderClient, Request

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50060"
PROMPTS = ("import os\n", "class Dragon:", "def parse_header(line):")


async def take(client: OutriderClient, job_id: str) -> str:
    """Return how a job ended, and its text."""
    text, cursor, reason = "", 0, ""
    while True:
        polled = await client.poll(job_id, cursor, wait_seconds=5)
        cursor = polled.next_cursor
        for event in polled.events:
            if isinstance(event, Delta):
                text += "".join(piece.text for piece in event.pieces)
            elif isinstance(event, Finished):
                reason = event.reason.value
        if polled.finished:
            return f"{polled.failure.message if polled.failure else reason}: {text!r}"


async def main() -> None:
    async with OutriderClient(ADDRESS) as client:
        short = [Request(prompt, token_limit=16, seed=1) for prompt in PROMPTS]
        job_ids = [(await client.submit(each))[0] for each in short]
        endless = Request("# Not needed after all\n", token_limit=-1, shift=True, ignore_eos=True)
        last, _ = await client.submit(endless)
        await client.cancel(last)
        for told in await asyncio.gather(*(take(client, each) for each in (*job_ids, last))):
            print(told)


asyncio.run(main())
