"""Streams a completion and says where its tokens came from.

Start `outrider up`, then: python examples/stream.py [HOST:PORT]
"""

import sys

from outrider.client import Client, Delta, Finished, Origin, Request
from outrider.sampling import SamplingParameters

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50060"
REQUEST = Request(
    "def read_config(path):",
    token_limit=60,
    seed=7,
    stop_sequences=("\n\n",),
    sampling=SamplingParameters(temperature=0.4, repeat_penalty=1.1),
)

with Client(ADDRESS) as client:
    for event in client.generate(REQUEST):
        if isinstance(event, Delta):
            for piece in event.pieces:
                mark = "" if piece.origin is Origin.PLAIN else f"<{piece.origin.value}>"
                print(f"{mark}{piece.text}", end="", flush=True)
        elif isinstance(event, Finished):
            its = event.statistics
            print(f"\n{event.reason.value}: {its.generated_token_count} tokens,", end=" ")
            print(f"{its.accepted_token_count} of {its.drafted_token_count} drafted accepted")
