"""What sampling one row of logits costs on one thread, by sampler and vocabulary, without a decode.

And the rows of 2 to 16 sessions of one decode, on the engine's thread and in threads beside it.

python -m benchmarks.rows [--vocabulary 152064] [--helpers 0 1 3]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.processes import TARGET
from model_making.agreement import load
from model_making.synthetic import SHAPES, enlarged, read_tokenizer, write_model
from outrider.distribution import logprobs, most_probable, softmax
from outrider.engine.llama import LlamaModel
from outrider.engine.model import Row
from outrider.engine.workers import Work, Workers
from outrider.model_service.run import SWITCH_SECONDS
from outrider.sampling import GREEDY, SamplingParameters

SIZES = (4_096, 152_064)
TEXT_TOKENS = 300
"""Tokens before the row, which penalties and DRY look at."""

REPEATS, BLOCKS = 20, 7
SESSIONS = (2, 4, 8, 16)
SHARED = ("greedy", "top-k 40", "penalties, top-k 40", "min-p .05 alone", "top-p .95 alone")
FREE = SamplingParameters(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0)
TOP_K = replace(FREE, top_k=40)
SAMPLERS = {
    "greedy": GREEDY,
    "top-k 40": TOP_K,
    "top-k 40, top-p .95, min-p .05": SamplingParameters(),
    "top-p .95 alone": replace(FREE, top_p=0.95),
    "min-p .05 alone": replace(FREE, min_p=0.05),
    "mirostat 1": replace(FREE, mirostat=1),
    "mirostat 2": replace(FREE, mirostat=2),
    "no cut": FREE,
    "penalties, top-k 40": replace(TOP_K, repeat_penalty=1.1, presence_penalty=0.2),
    "DRY, top-k 40": replace(TOP_K, dry_multiplier=0.8),
    "bias of 3 tokens, top-k 40": replace(TOP_K, logit_bias=((5, 1.0), (6, -1.0), (7, 2.0))),
}
REPORTS: dict[str, Callable[[Row], object]] = {
    "16 candidates reported": lambda row: most_probable(softmax(row), 16),
    "20 log probabilities reported": lambda row: logprobs(softmax(row), 20, [7]),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vocabulary", type=int, action="append", metavar="TOKENS")
    threads = "threads beside the engine's; more than there are free cores say nothing"
    parser.add_argument("--helpers", type=int, nargs="+", default=(0, 1), help=threads)
    asked = parser.parse_args()
    sys.setswitchinterval(SWITCH_SECONDS)
    for size in asked.vocabulary or SIZES:
        with _model(size) as model:
            print(f"\n{size:,} tokens: milliseconds a row, the fastest of {BLOCKS} blocks")
            print(f"{'':32}{'flat':>8}{'peaked':>8}")
            rows = list(_rows(size))
            for name, parameters in SAMPLERS.items():
                _print(name, [_milliseconds(_sampled(model, parameters), row) for row in rows])
            for name, report in REPORTS.items():
                _print(name, [_milliseconds(report, row) for row in rows])
            for helpers in asked.helpers:
                workers = Workers[None](helpers)
                print(f"\nmilliseconds for the flat rows of all sessions, {helpers} more threads")
                print(f"{'':32}" + "".join(f"{count:8}" for count in SESSIONS))
                for name in SHARED:
                    _print(name, _side_by_side(model, SAMPLERS[name], workers, rows[0]))
                workers.stop()


@contextmanager
def _model(size: int) -> Iterator[LlamaModel]:
    """Lend a model of one layer with so many tokens."""
    keys = read_tokenizer(TARGET)
    shape = replace(SHAPES["tiny"], layers=1, vocabulary=size)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.gguf"
        write_model(path, shape, enlarged(keys, size), seed=1)
        with closing(load(path, context=TEXT_TOKENS + 1, threads=1)) as model:
            yield model


def _rows(size: int) -> Iterator[Row]:
    """Yield a row of a model that knows little, and one of a model that is sure of few tokens."""
    random = np.random.default_rng(1)
    flat = random.normal(scale=3.0, size=size).astype(np.float32)
    yield flat
    peaked = flat.copy()
    peaked[random.choice(size, 12, replace=False)] += np.linspace(20, 12, 12, dtype=np.float32)
    yield peaked


def _sampled(model: LlamaModel, parameters: SamplingParameters) -> Callable[[Row], object]:
    """Return what a target does with a row under shared noise."""
    sampler = model.sampler(parameters, seed=1, choice=0)
    random = np.random.default_rng(2)
    for token_id in random.integers(3, 100, TEXT_TOKENS):
        sampler.accept(int(token_id), is_prompt=True)
    return lambda row: sampler.distribution(row).race(1, 0, TEXT_TOKENS)


def _side_by_side(
    model: LlamaModel, parameters: SamplingParameters, workers: Workers[None], row: Row
) -> Iterator[float]:
    """Yield what sampling a row for each of several sessions takes, for 2, 4, ... of them."""
    for count in SESSIONS:
        chains = [_sampled(model, parameters) for _ in range(count)]
        works = [Work(partial(chain, np.roll(row, 999 * i))) for i, chain in enumerate(chains)]

        def sample(_: Row, works: Sequence[Work] = works) -> None:
            for work in works:
                workers.add(None, work)
            for _owner, outcome in workers.outcomes():
                assert outcome.error is None

        yield _milliseconds(sample, row)


def _milliseconds(work: Callable[[Row], object], row: Row) -> float:
    blocks = []
    for _ in range(BLOCKS):
        start = time.perf_counter()
        for _ in range(REPEATS):
            work(row)
        blocks.append(time.perf_counter() - start)
    return 1e3 * min(blocks) / REPEATS


def _print(name: str, milliseconds: Iterable[float]) -> None:
    print(f"{name:32}" + "".join(f"{each:8.3f}" for each in milliseconds), flush=True)


if __name__ == "__main__":
    main()
