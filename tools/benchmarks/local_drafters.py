"""What drafters without a model cost, and what they predict of three kinds of text.

python -m benchmarks.local_drafters [--tokens 1024 --tokens 32768]

Costs are microseconds a token and a round, and bytes a token of history. The text is Python's own
standard library in pieces of about four letters, with a copied stretch now and then; for what a
grammar forces, JSON under a schema. After it, how much the suffix automaton and the n-gram caches
predict of a file rewritten with a renamed identifier, of an extract with long quotations, and of a
transcript that repeats tool output: by themselves, one after the other, and the better of the two.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import random
import re
import shutil
import subprocess
import time
import tracemalloc
import typing
from collections.abc import Callable, Sequence
from statistics import median

from outrider.drafters.copying import CopySource
from outrider.drafters.forced import ForcedSource
from outrider.drafters.ngram_source import NgramSource
from outrider.drafters.prediction import PredictionSource
from outrider.drafters.source import Scored, Source
from outrider.drafters.suffix import PastSource, PastTexts, SuffixSource
from outrider.grammar.gbnf import read_grammar
from outrider.grammar.schema import grammar_of_schema
from outrider.grammar.states import GrammarStates

SIZES = (1_024, 8_192, 32_768)
ROUNDS, ROUND_TOKENS, PROPOSED = 128, 4, 16
"""Measured after the history: tokens committed a round, and tokens asked for."""

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
    _print_costs(sizes)
    print()
    _print_predicted()


def _print_costs(sizes: Sequence[int]) -> None:
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
        ("copy", CopySource, code[:end]),
        ("n-grams", NgramSource, code[:end]),
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


# --- what they predict ---


def _print_predicted() -> None:
    """Print how much of each kind of text comes from drafts, where a round ends at a miss."""
    print(f"{PROPOSED} tokens asked for; a round commits those that are right and the one after")
    print(f"{'':18}{'text':>8}{'predicted':>12}{'right':>8}{'a round':>9}{'asked':>8}")
    print(f"{'':18}{'tokens':>8}{'of text':>12}{'':8}{'tokens':>9}{'us':>8}")
    for kind, make in (("rewrite", _rewrite), ("extract", _extract), ("transcript", _transcript)):
        pieces = Pieces()
        prompt, text = map(pieces.tokenize, make())
        print(f"{kind}, after a prompt of {len(prompt):,} tokens")
        for name, propose in _ways().items():
            accepted, proposed, rounds, seconds = _predicted(propose, prompt, text)
            print(f"  {name:16}{len(text):8,}{accepted / len(text):12.1%}", end="")
            print(f"{accepted / max(1, proposed):8.0%}{len(text) / rounds:9.2f}", end="")
            print(f"{1e6 * seconds / rounds:8.0f}", flush=True)


Ask = Callable[[Source, Source, Sequence[int]], Sequence[int]]
"""What the two sources propose; the third is what comes, for who knows it."""


def _ways() -> dict[str, Ask]:
    def goes_on(one: Source, other: Source, _: Sequence[int]) -> Sequence[int]:
        first = one.propose(PROPOSED).token_ids
        return [*first, *other.propose(PROPOSED - len(first), first).token_ids]

    def better(one: Source, other: Source, text: Sequence[int]) -> Sequence[int]:
        both = [each.propose(PROPOSED).token_ids for each in (one, other)]
        return max(both, key=lambda ids: _right(ids, text))

    return {
        "suffix": lambda suffix, _, __: suffix.propose(PROPOSED).token_ids,
        "n-grams": lambda _, ngrams, __: ngrams.propose(PROPOSED).token_ids,
        "suffix, n-grams": goes_on,
        "n-grams, suffix": lambda suffix, ngrams, text: goes_on(ngrams, suffix, text),
        "the better one": better,
    }


def _right(proposed: Sequence[int], text: Sequence[int]) -> int:
    both = min(len(proposed), len(text))
    return next((i for i in range(both) if proposed[i] != text[i]), both)


def _predicted(ask: Ask, prompt: Sequence[int], text: Sequence[int]) -> tuple[int, int, int, float]:
    """Return the tokens that were right, those proposed, the rounds, and the seconds to ask."""
    sources = SuffixSource(), NgramSource()
    for source in sources:
        source.append(prompt)
    accepted = proposed = rounds = at = 0
    seconds = 0.0
    while at < len(text):
        begin = time.perf_counter()
        token_ids = ask(*sources, text[at:])
        seconds += time.perf_counter() - begin
        right = _right(token_ids, text[at:])
        accepted, proposed, rounds = accepted + right, proposed + len(token_ids), rounds + 1
        for source in sources:
            source.append(text[at : at + right + 1])
        at += right + 1
    return accepted, proposed, rounds, seconds


def _rewrite() -> tuple[str, str]:
    """Return a file, and the same with another identifier."""
    file = inspect.getsource(subprocess)[:40_000]
    return file, re.sub(r"\bself\b", "process", file)


def _extract() -> tuple[str, str]:
    """Return a file, and remarks that are not in it, with quotations of some lines from it."""
    choose = random.Random(1)
    file = inspect.getsource(argparse)[:40_000]
    lines, remarks = file.splitlines(True), iter(inspect.getsource(shutil).splitlines(True))
    text = ""
    while len(text) < 20_000:
        text += "".join(next(remarks) for _ in range(choose.randint(1, 4)))
        start = choose.randrange(len(lines) - 20)
        text += "".join(lines[start : start + choose.randint(8, 20)])
    return file, text


def _transcript() -> tuple[str, str]:
    """Return a tool's output, and steps of which each shows it again with some values changed."""
    choose = random.Random(1)
    pods = [(f"pod-{i}-{choose.randrange(16**6):06x}", "Running", i) for i in range(12)]

    def show() -> str:
        rows = (f"{name}  {state}  {age}m  10.0.0.{age % 12}\n" for name, state, age in pods)
        return "NAME  STATUS  AGE  ADDRESS\n" + "".join(rows)

    remarks = iter(inspect.getsource(ast).splitlines(True))
    prompt, text = show(), ""
    while len(text) < 20_000:
        text += "".join(next(remarks) for _ in range(choose.randint(1, 3)))
        for i in choose.sample(range(len(pods)), 3):
            name, _, age = pods[i]
            pods[i] = (name, choose.choice(["Running", "Pending", "Failed"]), age + 1)
        text += show()
    return prompt, text


if __name__ == "__main__":
    main()
