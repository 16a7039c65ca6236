"""What a translation between two large vocabularies costs a draft for each token.

python -m benchmarks.translation [TOKENS [DRAFT]]

With a draft, what a token costs it is measured beside that, and which share of it translation is:
of a token that is committed too, as in rounds of one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from time import perf_counter

import numpy as np

from model_making.agreement import load
from outrider.distribution import from_logits
from outrider.engine.model import Chunk
from outrider.engine.translating import SAMPLE
from outrider.text_encoder import TokenStream
from outrider.translation import TokenTable, Translation

_ROUNDS = 200
_LONG = 32_768
"""Tokens of a long text."""

_SHARED = 0.7  # of the draft's tokens


def vocabulary(count: int, seed: int, shared: float = _SHARED) -> TokenTable:
    """Return a vocabulary of bytes and random words, of which seeds have a share in common."""
    words = dict.fromkeys(bytes([i]) for i in range(256))
    for kind, upto in ((0, int(count * shared)), (seed, count)):
        rng = np.random.default_rng(kind)
        while len(words) < upto:  # short ones come twice
            lengths = rng.integers(2, 9, upto - len(words))
            letters = rng.integers(97, 123, int(lengths.sum()), np.uint8).tobytes()
            ends = np.cumsum(lengths)
            new = (b" " + letters[e - n : e] for n, e in zip(lengths, ends, strict=True))
            words |= dict.fromkeys(new)
    every = list(words)
    order = np.random.default_rng(seed).permutation(len(every) - 256) + 256
    texts = [*every[:256], *(every[i] for i in order)]
    return TokenTable(texts=texts, names=texts, type=2)


def milliseconds(action: Callable[[], object]) -> float:
    """Return the median time of an action."""
    times = []
    for _ in range(_ROUNDS):
        begin = perf_counter()
        action()
        times.append(perf_counter() - begin)
    return 1e3 * float(np.median(times))


def draft_milliseconds(path: Path) -> tuple[int, float]:
    """Return a draft's tokens, and the median time of a decode of one row after 64 tokens."""
    with closing(load(path, 512, 1)) as model:
        held = [5 + i for i in range(64)]
        model.decode([Chunk(0, 0, held, 1)])

        def step() -> None:
            model.decode([Chunk(0, len(held), [7], 1)])
            held.append(7)

        return len(model.token_names()), milliseconds(step)


def main() -> None:
    """Print a table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 150_000
    begin = perf_counter()
    its = Translation(vocabulary(count, 1), vocabulary(count, 2))
    built = perf_counter() - begin
    row = np.random.default_rng(3).normal(size=count).astype(np.float32)
    row = row[: len(its.draft.texts)]
    best = np.argpartition(row, -40)[-40:].astype(np.int32)
    few = from_logits(best, row[best])
    whole = from_logits(np.arange(len(row), dtype=np.int32), row)
    reader, text = its.reader(), its.target.encoder().encode(SAMPLE * 12)
    stream = TokenStream(its.target_encoder)
    grown = [0]

    long_reader = its.reader()
    line = (text * (_LONG // len(text) + 1))[:_LONG]
    long_reader.read(line, _LONG)

    def read_on() -> None:
        grown[0] = grown[0] % (len(text) - 1) + 1
        reader.read(text[: grown[0]], grown[0])

    def write_on() -> None:
        line.append(line[len(line) % 100])
        long_reader.read(line, _LONG)

    def start_over() -> None:
        line.append(line[len(line) % 100])
        long_reader.read(line, len(line))

    print(f"{len(its.draft.texts)} and {len(its.target.texts)} tokens, {its.shared_count} shared")
    print(f"learned in {built:.2f} s")
    spent = {}
    for what, action in (
        ("row restricted to shared tokens", lambda: its.restricted(row)),
        ("distribution of 40 tokens", lambda: its.in_target(few)),
        ("distribution of all tokens", lambda: its.in_target(whole)),
        ("text read on by a token", read_on),
        (f"a token after {_LONG}, drafted", write_on),
        (f"a token after {_LONG}, committed", start_over),
        ("text encoded on by a token", lambda: stream.feed(b" word")),
    ):
        spent[what] = milliseconds(action)
        print(f"{what:34} {spent[what]:7.3f} ms")
    if len(sys.argv) > 2:
        report_share(Path(sys.argv[2]), spent)


def report_share(draft: Path, spent: Mapping[str, float]) -> None:
    """Print what a token costs a draft, and the share of it that translation is."""
    size, own = draft_milliseconds(draft)
    print(f"{size} tokens, a token of the draft on one thread {own:7.3f} ms")
    string = [spent["text encoded on by a token"], spent["text read on by a token"]]
    parts = ("row restricted to shared tokens", "distribution of 40 tokens")
    token = [spent[part] for part in (*parts, f"a token after {_LONG}, drafted")]
    for level, drafted in (("token", token), ("string", string)):
        committed = sum(drafted) + spent[f"a token after {_LONG}, committed"]
        shares = f"{100 * sum(drafted) / own:.1f} % of it drafted"
        print(f"{level} level: {shares}, {100 * committed / own:.1f} % committed, too")


if __name__ == "__main__":
    main()
