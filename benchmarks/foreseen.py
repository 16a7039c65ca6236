"""Says how often a wrong draft token is foreseen by the draft's next choices, by their number.

Along texts that the target writes by itself: `python -m benchmarks.foreseen TARGET DRAFT`.
Only what the models say counts here, no time: what is foreseen in service is less, since the line
has to be there when the miss is.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from models.agreement import load
from outrider.engine.guesser import guesser
from outrider.engine.llama import LlamaModel
from outrider.engine.model import Chunk
from outrider.messages import Rule, SessionParameters
from outrider.sampling import GREEDY, SamplingParameters

_MOST = 4  # choices
PROMPTS = ("def main(", "import os\n", "class Queue:\n", "    for line in ", "# This module ")


def ranks(
    target: LlamaModel, draft: LlamaModel, prompt: str, sampling: SamplingParameters, tokens: int
) -> Iterator[int | None]:
    """Yield where the target's token stands among the draft's choices, along a text; None: not."""
    text = target.tokenize(prompt.encode(), True, False)
    vocabulary = min(len(target.token_names()), len(draft.token_names()))
    rule = Rule.MATCH if sampling.greedy else Rule.SHARED_NOISE
    session = SessionParameters(
        session_id=bytes(16),
        attempt=1,
        rule=rule,
        sampling=sampling,
        seed=len(prompt),
        choice=0,
        prompt_count=len(text),
        token_limit=tokens,
        vocabulary=vocabulary,
    )
    say = [guesser(model, session, 256, 0.0) for model in (target, draft)]
    held = 0
    for model in (target, draft):
        model.truncate(0, 0)
    for _ in range(tokens):
        new = text[held:]
        rows = [model.decode([Chunk(0, held, new, 1)])[0][0] for model in (target, draft)]
        held = len(text)
        token_id = say[0](rows[0], len(text), text).token_id
        choices = [each for each, _ in say[1](rows[1], len(text), text, _MOST - 1).chances]
        yield choices.index(token_id) if token_id in choices else None
        text.append(token_id)


def report(name: str, found: Sequence[int | None]) -> str:
    """Return a row of the table: acceptance, and the misses that further choices foresee."""
    misses = [rank for rank in found if rank != 0]
    shares = [
        sum(rank is not None and rank <= more for rank in misses) / max(1, len(misses))
        for more in range(1, _MOST)
    ]
    accepted = 1.0 - len(misses) / len(found)
    return f"| {name} | {len(found)} | {accepted:.2f} | " + " | ".join(f"{s:.2f}" for s in shares)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--tokens", type=int, default=200, help="of each text")
    asked = parser.parse_args()
    print("| | tokens | accepted | foreseen by one more choice | by two | by three |")
    print("|---|---|---|---|---|---|")
    with closing(load(asked.target, 512, 1)) as target, closing(load(asked.draft, 512, 1)) as draft:
        for name, sampling in (
            ("greedy", GREEDY),
            ("T 0.8", SamplingParameters(temperature=0.8)),
            ("T 0.8, top-k 40", SamplingParameters(temperature=0.8, top_k=40)),
        ):
            texts = [ranks(target, draft, each, sampling, asked.tokens) for each in PROMPTS]
            print(report(name, list(itertools.chain.from_iterable(texts))) + " |", flush=True)


if __name__ == "__main__":
    main()
