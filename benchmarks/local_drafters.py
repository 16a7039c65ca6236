"""What drafters without a model cost: microseconds a token and a round, bytes a token of history.

python -m benchmarks.local_drafters [--tokens 1024 --tokens 32768]

The text is Python's own standard library in pieces of about four letters, with a copied stretch
now and then; for what a grammar forces, JSON under a schema.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import random
import re
import subprocess
import time
import tracemalloc
import typing
from collections.abc import Callable, Sequence
from statistics import median

from outrider.drafters.forced import ForcedSource
from outrider.drafters.prediction import PredictionSource
from outrider.drafters.source import Scored, Source
from outrider.drafters.suffix import PastSource, PastTexts, SuffixSource
from outrider.grammar.gbnf import read_grammar
from outrider.grammar.schema import grammar_of_schema
from outrider.grammar.states import GrammarStates

SIZES = (1_024, 8_192, 32_768)
ROUNDS, ROUND_TOKENS, PROPOSED = 128, 4, 16
"""Measured behind the history: tokens committed a round, and tokens asked for."""

SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "customer_identifier": {"type": "integer"},
            "delivery_address": {"type": "string"},
            "payment_status": {"enum": ["outstanding", "received", "refunded"]},
        },
        "required": ["customer_identifier", "delivery_address", "payment_status"],
        "additionalProperties": False,
    },
}


class Pieces:
    """Texts as ids of pieces, and back."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self._ids: dict[str, int] = {}

    def tokenize(self, text: str) -> list[int]:
        """Split a text; new pieces get new ids."""
        found = []
        for piece in re.findall(r"\w{1,4}|\s+|[^\w\s]{1,2}", text):
            if piece not in self._ids:
                self._ids[piece] = len(self.texts)
                self.texts.append(piece.encode())
            found.append(self._ids[piece])
        return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, action="append", metavar="HISTORY")
    sizes = parser.parse_args().tokens or SIZES
    pieces = Pieces()
    most = max(sizes) + ROUNDS * ROUND_TOKENS
    code, data = _code(pieces, most), _json(pieces, most)
    print(f"{PROPOSED} tokens asked for, {ROUND_TOKENS} committed a round, the median round")
    print(f"{'':18}{'history':>8}{'fed':>10}{'appended':>10}{'asked':>8}{'round':>8}", end="")
    print(f"{'bytes':>8}{'accepted':>10}")
    print(f"{'':18}{'tokens':>8}{'us/token':>10}{'us/token':>10}{'us':>8}{'us':>8}", end="")
    print(f"{'a token':>8}{'':>10}")
    for size in sizes:
        whole = 0.0
        for name, make, text in _sources(pieces, code, data, size):
            held = _bytes(make, text[:size]) / size
            source, fed = _timed_source(make, text[:size])
            appended, asked, accepted = _rounds(source, text[size:])
            whole += appended + asked
            print(f"{name:18}{size:8,}{fed:10.1f}{appended / ROUND_TOKENS:10.1f}", end="")
            print(f"{asked:8.1f}{appended + asked:8.1f}{held:8.0f}{accepted:10.0%}", flush=True)
        print(f"{'all, a round':18}{size:8,}{'':28}{whole:8.1f}", flush=True)


Maker = Callable[[], Source]


def _sources(
    pieces: Pieces, code: Sequence[int], data: Sequence[int], size: int
) -> list[tuple[str, Maker, Sequence[int]]]:
    """Return each source by name, how it is made, and the text that it follows."""
    end = size + ROUNDS * ROUND_TOKENS
    edited = [token_id for i, token_id in enumerate(code[:end]) if i % 40]
    grammar = read_grammar(grammar_of_schema(json.dumps(SCHEMA)))

    def past() -> Source:
        texts = PastTexts(size)
        texts.add(code[:size])
        texts.index(size)
        return PastSource(texts)

    def forced() -> Source:
        def tokenize(text: bytes) -> list[int]:
            return pieces.tokenize(text.decode())

        return ForcedSource(GrammarStates(grammar), pieces.texts.__getitem__, tokenize)

    return [
        ("suffix", SuffixSource, code[:end]),
        ("past texts", past, code[:end]),
        ("prediction", lambda: PredictionSource(edited), code[:end]),
        ("forced", forced, data[:end]),
    ]


def _timed_source(make: Maker, history: Sequence[int]) -> tuple[Source, float]:
    """Return a source that was fed a history, and the microseconds a token to make and feed it."""
    start = time.perf_counter()
    source = make()
    source.append(history)
    return source, 1e6 * (time.perf_counter() - start) / len(history)


def _rounds(source: Source, text: Sequence[int]) -> tuple[float, float, float]:
    """Return microseconds to append and to ask in the median round, and the share accepted."""
    scored = Scored(source)
    appended, asked = [], []
    for start in range(0, ROUNDS * ROUND_TOKENS, ROUND_TOKENS):
        begin = time.perf_counter()
        scored.propose(PROPOSED)
        middle = time.perf_counter()
        scored.append(text[start : start + ROUND_TOKENS])
        asked.append(middle - begin)
        appended.append(time.perf_counter() - middle)
    share = scored.accepted_count / max(1, scored.decided_count)
    return 1e6 * median(appended), 1e6 * median(asked), share


def _bytes(make: Maker, history: Sequence[int]) -> int:
    """Return what a source holds after a history, as Python counts it."""
    tracemalloc.start()
    try:
        source = make()
        source.append(history)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def _code(pieces: Pieces, count: int) -> list[int]:
    """Return source texts, one token in ten of them in stretches that were there before."""
    modules = (argparse, ast, inspect, typing, subprocess, re, random, json)
    whole = pieces.tokenize("".join(map(inspect.getsource, modules)))
    choose = random.Random(1)
    text: list[int] = []
    at = 0
    while len(text) < count:
        text += whole[at : at + 360]
        at = (at + 360) % len(whole)
        start = choose.randrange(max(1, len(text) - 40))
        text += text[start : start + 40]
    return text[:count]


def _json(pieces: Pieces, count: int) -> list[int]:
    choose = random.Random(1)
    items, text = [], ""
    while len(pieces.tokenize(text)) < count:
        for _ in range(1 + count // 30):
            status = choose.choice(["outstanding", "received", "refunded"])
            street = f"{choose.choice(['Mill', 'High', 'Station'])} Street {len(items)}"
            identifier = choose.randrange(100_000)
            items.append(
                {
                    "customer_identifier": identifier,
                    "delivery_address": street,
                    "payment_status": status,
                }
            )
        text = json.dumps(items)
    return pieces.tokenize(text)[:count]


if __name__ == "__main__":
    main()
