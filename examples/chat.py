"""Answers a chat and says how sure the target is of every token.

Start `outrider up`, then: python examples/chat.py [HOST:PORT]
"""

import math
import sys

from outrider.client import Client, Delta, Request
from outrider.messages import LogprobOptions
from outrider.sampling import SamplingParameters

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50060"
CHAT = [
    {"role": "system", "content": "You write Python."},
    {"role": "user", "content": "import the module os"},
]
with Client(ADDRESS) as client:
    request = Request(
        client.apply_template(CHAT),
        token_limit=12,
        parse_special=True,  # the template's control tokens are tokens, not text
        stop_sequences=("<|im_end|>",),  # for a model that has no such token
        sampling=SamplingParameters(temperature=0),
        logprobs=LogprobOptions(top_count=2),
    )
    for event in client.generate(request):
        if not isinstance(event, Delta):
            continue
        for origin, logprob in zip(event.origins, event.logprobs, strict=False):
            best = [f"{token.text!r} {math.exp(p):.3f}" for token, p in logprob.alternatives]
            print(f"{origin.value:9}  {math.exp(logprob.value):.3f}  of {', '.join(best)}")
