"""What a translation between two large vocabularies costs a draft for each token.

python -m benchmarks.translation [TOKENS]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter

import numpy as np

from outrider.distribution import from_logits
from outrider.engine.translating import SAMPLE
from outrider.text_encoder import TokenStream
from outrider.translation import TokenTable, Translation

_ROUNDS = 200
_LONG = 32_768
"""Tokens of a long text."""

_SHARED = 0.7  # of the draft's tokens


def vocabulary(count: int, seed: int, shared: float = _SHARED) -> TokenTable:
    """Return a vocabulary of bytes and random words, of which seeds have a share in common."""
    words = [bytes([i]) for i in range(256)]
    for kind, part in ((0, shared), (seed, 1.0 - shared)):
        rng = np.random.default_rng(kind)
        lengths = rng.integers(2, 9, int(count * part))
        letters = rng.integers(97, 123, int(lengths.sum()), np.uint8).tobytes()
        ends = np.cumsum(lengths)
        words += [b" " + letters[e - n : e] for n, e in zip(lengths, ends, strict=True)]
    words = list(dict.fromkeys(words))[:count]
    order = np.random.default_rng(seed).permutation(len(words) - 256) + 256
    texts = [*words[:256], *(words[i] for i in order)]
    return TokenTable(texts=texts, names=texts, type=2)


def milliseconds(action: Callable[[], object]) -> float:
    """Return the median time of an action."""
    times = []
    for _ in range(_ROUNDS):
        begin = perf_counter()
        action()
        times.append(perf_counter() - begin)
    return 1e3 * float(np.median(times))


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
    for what, action in (
        ("row restricted to shared tokens", lambda: its.restricted(row)),
        ("distribution of 40 tokens", lambda: its.in_target(few)),
        ("distribution of all tokens", lambda: its.in_target(whole)),
        ("text read on by a token", read_on),
        (f"a token after {_LONG}, drafted", write_on),
        (f"a token after {_LONG}, committed", start_over),
        ("text encoded on by a token", lambda: stream.feed(b" word")),
    ):
        print(f"{what:34} {milliseconds(action):7.3f} ms")


if __name__ == "__main__":
    main()
