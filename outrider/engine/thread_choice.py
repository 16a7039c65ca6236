"""With how many threads a model computes, where there is a choice: with those that are quickest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from outrider.engine.model import Model, ModelDescription

_LEFT_CORES = 2
"""Cores beside a target on a GPU: one for the thread that waits for the GPU, and spins, and one for
everybody's messages. With a thread on each of 16 cores a draft made 27 tokens/s, with 8 threads 93
(docs/decisions/0056)."""


def thread_choices(cores: int, is_on_gpu: bool, is_beside_gpu: bool) -> tuple[int, ...]:
    """Return the numbers of threads to choose from, the most first.

    A GPU leaves the CPU a lookup of embeddings, which llama.cpp does with one thread. A model that
    is kept off a GPU leaves cores to who uses that. Any other takes all cores, in turn with others.
    """
    if is_on_gpu:
        return (1,)
    if not is_beside_gpu:
        return (cores,)
    counts = {max(1, count) for count in (cores - _LEFT_CORES, cores // 2, cores // 4)}
    return tuple(sorted(counts, reverse=True))


def quickest(choices: Sequence[int], seconds: Mapping[int, float]) -> int:
    """Return the number of threads with which a token is soonest; the first where nobody knows."""
    return min(choices, key=lambda count: seconds.get(count, math.inf))


def use_quickest(model: Model, seconds: Mapping[int, float]) -> None:
    """Let a model compute with the threads with which a token is soonest, where it can choose."""
    choices = model.describe().thread_choices
    if len(choices) > 1:
        model.use_threads(quickest(choices, seconds))


def describe_threads(model: ModelDescription, seconds: Mapping[int, float]) -> str:
    """Return how many threads were chosen, and why, for people; empty where there was no choice."""
    count = model.thread_count
    if count in seconds:
        rates = {each: f"{1.0 / seconds[each]:.0f}" for each in seconds}
        others = ", ".join(f"{rates[each]} with {each}" for each in rates if each != count)
        return f"{count} threads: {rates[count]} tokens/s, {others}"
    if model.is_on_gpu and model.thread_choices:
        return f"{count} thread: a GPU computes all layers"
    return ""
