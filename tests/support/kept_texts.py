"""Texts as a target keeps them, to teach a head from: written by a tiny one, without services."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk
from outrider.kept_rows import KeptText

LAYERS = (0, 1, 3)
TOP = 8


def write_texts(target: Path, layers: tuple[int, ...] = LAYERS) -> list[KeptText]:
    """Return what it writes after prompts of 12 random tokens: by two greedy, by one sampled.

    Without layers, tokens and distributions alone.
    """
    model = LlamaModel(
        LlamaConfig(path=target, context=256, sequence_count=1, thread_count=1, pad_multiple=1)
    )
    random = np.random.default_rng(7)
    if layers:
        model.keep_rows(layers)
    found = []
    for number in range(160):
        prompt = random.integers(3, 320, 12).tolist()
        temperature = 0.8 if number % 3 == 2 else 0.0
        found.append(_written(model, prompt, 52, temperature, random, bool(layers)))
        model.truncate(0, 0)
    model.close()
    return found


def _written(
    model: LlamaModel,
    prompt: list[int],
    count: int,
    temperature: float,
    random: Any,
    keeps_rows: bool,
) -> KeptText:
    """Return a text as a target keeps it: the rows, and what it would have written after each."""
    tokens, tops, logs = list(prompt), [], []
    [[row]] = model.decode([Chunk(0, 0, prompt, 1)])
    for _ in range(count):
        chances = np.exp(row - row.max())
        logprobs = np.log(chances / chances.sum())
        top = np.argsort(-logprobs)[:TOP]
        tops.append(top)
        logs.append(logprobs[top])
        weights = chances ** (1 / temperature) if temperature else None
        drawn = random.choice(len(row), p=weights / weights.sum()) if temperature else int(top[0])
        [[row]] = model.decode([Chunk(0, len(tokens), [int(drawn)], 1)])
        tokens.append(int(drawn))
    none = np.empty((len(tokens), 0), np.float32)
    first, rows = model.hidden_rows(0) if keeps_rows else (0, none)
    assert first == 0
    unknown = len(tokens) - len(tops) - 1  # the last token's row has no distribution either
    ids = np.concatenate([np.full((unknown, TOP), -1), tops, np.full((1, TOP), -1)])
    log_rows = np.concatenate([np.zeros((unknown, TOP)), logs, np.zeros((1, TOP))])
    return KeptText(
        0,
        np.array(tokens, np.int32),
        np.array(rows[: len(tokens)], np.float16),
        ids.astype(np.int32),
        log_rows.astype(np.float16),
    )
