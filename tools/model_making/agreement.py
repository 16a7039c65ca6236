"""How often two models agree along texts that the target writes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Row, Sampler
from outrider.sampling import SamplingParameters

TEXTS = 32
PROMPT = 16  # random tokens; those of all texts are one decode


@dataclass(frozen=True, slots=True)
class Position:
    """What the models say at a position of a text that the target writes."""

    token_id: int
    draft_id: int  # with the same noise
    draft_best: int  # without noise
    top: float  # the probability of the target's most probable token


Text: TypeAlias = Sequence[Position]


def agreement(texts: Sequence[Text]) -> float:
    """Return the share of positions where both models say the same."""
    return float(np.mean([p.token_id == p.draft_id for text in texts for p in text]))


def acceptance(texts: Sequence[Text], draft_length: int) -> float:
    """Return accepted / drafted tokens of serial rounds along the texts."""
    rounds = [
        counts
        for text in texts
        for counts in _rounds([p.token_id == p.draft_id for p in text], draft_length)
    ]
    accepted, drafted = np.sum(rounds, axis=0)
    return float(accepted / drafted)


def _rounds(agrees: Sequence[bool], draft_length: int) -> Iterator[tuple[int, int]]:
    """Yield the accepted and the drafted tokens of each round; one more follows the accepted."""
    at = 0
    while at < len(agrees):
        draft = agrees[at : at + draft_length]
        accepted = len(list(itertools.takewhile(bool, draft)))
        yield accepted, len(draft)
        at += accepted + 1


def longest_repeat(token_ids: Sequence[int]) -> int:
    """Return the most tokens in a row that all stand a fixed distance before as well.

    In a loop they continue to the end of the text.
    """
    ids = np.asarray(token_ids)
    runs = (
        len(list(run))
        for distance in range(1, len(ids))
        for same, run in itertools.groupby((ids[distance:] == ids[:-distance]).tolist())
        if same
    )
    return max(runs, default=0)


# --- measuring ---


def write_texts(
    target_file: Path,
    draft_file: Path,
    prompt_seed: Sequence[int],
    count: int,
    parameters: SamplingParameters,
    threads: int,
) -> list[list[Position]]:
    """Let the target write `count` tokens after random prompts, and the draft guess each."""
    context = PROMPT + count
    with (
        closing(load(target_file, context, threads)) as target,
        closing(load(draft_file, context, threads)) as draft,
    ):
        samplers = target.sampler(parameters), draft.sampler(parameters)
        pending = _prompts(target.describe().vocabulary.token_count, prompt_seed)
        texts: list[list[Position]] = [[] for _ in pending]
        for end in range(PROMPT, context):
            chunks = [Chunk(i, end - len(ids), ids, 1) for i, ids in enumerate(pending)]
            rows = zip(target.decode(chunks), draft.decode(chunks), strict=True)
            for i, ([row], [draft_row]) in enumerate(rows):
                texts[i].append(_position(row, draft_row, samplers, i, end))
            pending = [[text[-1].token_id] for text in texts]
    return texts


def load(path: Path, context: int, threads: int) -> LlamaModel:
    """Return a model that can write all texts at once."""
    return LlamaModel(
        LlamaConfig(
            path=path,
            context=context,
            sequence_count=TEXTS,
            thread_count=threads,
            pad_multiple=1,
        )
    )


def _prompts(token_count: int, seed: Sequence[int]) -> list[list[int]]:
    random = np.random.default_rng(seed)
    prompts: list[list[int]] = random.integers(token_count, size=(TEXTS, PROMPT)).tolist()
    return prompts


def _position(
    row: Row, draft_row: Row, samplers: tuple[Sampler, Sampler], stream: int, position: int
) -> Position:
    distribution, draft_distribution = (
        samplers[0].distribution(row),
        samplers[1].distribution(draft_row),
    )
    return Position(
        token_id=distribution.race(1, stream, position)[0],
        draft_id=draft_distribution.race(1, stream, position)[0],
        draft_best=int(draft_row.argmax()),
        top=float(distribution.weights.max()) / distribution.total,
    )
