"""Teaches a student from kept texts, from the target's distribution at each of their tokens.

Of a head each step of a draft is learned on what it wrote itself in the step before, as in service:
training-time test of EAGLE-3 (arXiv 2503.01840). A draft model reads texts alone, and is distilled.
A run is a number of steps, and the same texts, seed and steps give the same student, however often
it was interrupted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.errors import StateUnavailable
from outrider.kept_rows import KeptText
from outrider_teach.acceptance import Judgement
from outrider_teach.batches import (
    Window,
    batch_of,
    counted,
    most_frequent,
    row_scale,
    shuffled,
    windows_of,
)
from outrider_teach.head import EagleHead
from outrider_teach.judging import judge
from outrider_teach.loss import distance, wanted
from outrider_teach.optimiser import Optimiser, pace
from outrider_teach.student import Student
from outrider_teach.target_weights import TargetFile

_CHECKPOINT = "checkpoint.pt"
_BEST = "best.pt"
_SAVED_EVERY = 60.0  # s; what a run that is killed loses
_STEP_WEIGHT = 0.8  # of each further step of a draft in the loss, as EAGLE-3's authors have it
_SINGLE = 2 / 3
"""Of the steps, the first ones, in which a head learns drafts of one token: they cost half as much.
After 4.5 minutes of a core with such steps alone SmolLM2-135M's head has .25 of one token right,
and .17 with drafts of three. The share itself is chosen, not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """How a student is trained."""

    steps: int
    tokens: int = 2048  # of answers in a step
    length: int = 3  # tokens of a head's drafts that are learned
    single: float = _SINGLE  # of the steps, in which it is one
    drafted: int = 8192  # tokens that a head drafts, or a model learns most: the most frequent
    variation: float = 1.0  # weight of total variation, beside cross-entropy's 1
    rate: float = 1.0  # of the optimiser's rates
    judged_every: int = 200  # steps
    patience: int = 5  # judgements without a better one, after which it stops
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    step: int
    steps: int
    loss: float
    """A running mean."""
    judgement: Judgement | None
    """The held-out one, where it was made after this step."""


def new_head(
    target: TargetFile, layers: Sequence[int], texts: Sequence[KeptText], config: TrainingConfig
) -> EagleHead:
    """Return a head that knows what its target's file has to give.

    Raises InvalidConfig where a target does not show what these layers read.
    """
    target.check_feeds(layers)
    torch.manual_seed(config.seed)
    counts = counted(texts, target.vocabulary)
    drafted = most_frequent(counts, config.drafted)
    head = EagleHead(target.head_shape(layers), torch.from_numpy(drafted))
    matrix = torch.from_numpy(target.output_rows(drafted))
    with torch.no_grad():
        head.row_scale.copy_(torch.from_numpy(row_scale(texts)))
        head.output.weight.copy_(matrix)
        head.output_norm.weight.copy_(torch.from_numpy(target.output_norm) * quietness(matrix))
    return head


def quietness(matrix: Tensor) -> float:
    """Return what makes logits of rows that are 1 on average about 1: louder ones are all wrong.

    With its target's norm SmolLM2-135M's head begins at a loss of 19 in place of 10, of which 80
    steps take it back to 9.
    """
    return 1 / float(matrix.norm(dim=1).mean())


class Training:
    """A run over texts, on the device that the student is on."""

    def __init__(
        self,
        student: Student,
        texts: Sequence[KeptText],
        held_out: Sequence[KeptText],
        embeddings: Tensor,
        config: TrainingConfig,
        folder: Path,
    ) -> None:
        """`folder` is for checkpoints: a run that is there is gone on with."""
        self.student, self.config = student, config
        self._texts, self._held_out, self._embeddings = texts, held_out, embeddings
        self._windows = windows_of(texts, student.before)
        self._optimiser = Optimiser(student, config.rate)
        self._folder = folder
        self._batches = 0  # taken of an epoch
        self._epoch = 0
        self._loss = 0.0
        self.history: list[tuple[int, Judgement]] = []
        if (folder / _CHECKPOINT).exists():
            self._restore()

    @property
    def step(self) -> int:
        """Steps done."""
        return self._optimiser.step_count

    @property
    def best(self) -> Judgement | None:
        """The best judgement so far."""
        return max((judged for _, judged in self.history), key=_score, default=None)

    def run(self, report: Callable[[Progress], None], stop: Callable[[], bool]) -> None:
        """Train to the end, until it gets no better, or until `stop` says so after a step.

        Then the student has its best weights, unless it was stopped. Raises StateUnavailable where
        a checkpoint cannot be written.
        """
        saved = time.monotonic()
        for windows in self._remaining():
            loss = self._learn(windows)
            self._loss = loss if self.step == 1 else 0.98 * self._loss + 0.02 * loss
            judgement = self._judge() if self._is_judged() else None
            report(Progress(self.step, self.config.steps, self._loss, judgement))
            if stop():
                self._save()
                return
            if judgement is not None or time.monotonic() - saved > _SAVED_EVERY:
                self._save()
                saved = time.monotonic()
        self.student.load_state_dict(torch.load(self._folder / _BEST, weights_only=True))

    def _is_judged(self) -> bool:
        return self.step % self.config.judged_every == 0 or self.step == self.config.steps

    def _remaining(self) -> Iterator[list[Window]]:
        """Yield what is to be learned, epoch by epoch."""
        while True:
            random = np.random.default_rng((self.config.seed, self._epoch))
            packs = shuffled(self._windows, self.config.tokens, random)
            for windows in packs[self._batches :]:
                if self.step >= self.config.steps or self._is_stuck():
                    return
                self._batches += 1
                yield windows
            self._epoch, self._batches = self._epoch + 1, 0

    def _is_stuck(self) -> bool:
        scores = [judged.score for _, judged in self.history]
        return len(scores) - int(np.argmax(scores or [0])) > self.config.patience

    def _learn(self, windows: Sequence[Window]) -> float:
        """Make one step; return its loss."""
        with self._precision():
            loss = self.loss(windows)
        loss.backward()
        self._optimiser.step(pace(self.step, self.config.steps))
        return float(loss.detach())

    def loss(self, windows: Sequence[Window]) -> Tensor:
        """Return how far the student's drafts are from what the target would write."""
        device = str(self._embeddings.device)
        config, student = self.config, self.student
        batch = batch_of(self._texts, windows, device, student.lag)
        ids, matrix = student.output_rows(np.random.default_rng((config.seed, self.step)))
        target = wanted(batch.top_ids, batch.top_logprobs, ids)
        total, weight, weights = torch.zeros((), device=device), 1.0, 0.0
        for step in student.steps(batch, self._embeddings, self._length):
            rows = student.normed(step.own)
            its = target.at(step.at, step.is_inside)
            total = total + weight * distance(rows, matrix, its, config.variation)
            weight, weights = weight * _STEP_WEIGHT, weights + weight
        return total / weights

    @property
    def _length(self) -> int:
        """Tokens of the drafts that are learned in the next step."""
        return 1 if self.step < self.config.single * self.config.steps else self.config.length

    def _precision(self) -> AbstractContextManager[None]:
        """Compute in bf16 where that is quicker."""
        device = self._embeddings.device.type
        return torch.autocast(device, torch.bfloat16, enabled=computes_bf16(device))

    def _judge(self) -> Judgement:
        judged = judge(self.student, self._held_out, self._embeddings)
        if self.best is None or judged.score > self.best.score:
            _write(self._folder / _BEST, self.student.state_dict())
        self.history.append((self.step, judged))
        return judged

    def _save(self) -> None:
        state = {
            "student": self.student.state_dict(),
            "optimiser": self._optimiser.state(),
            "place": (self._epoch, self._batches),
            "loss": self._loss,
            "history": [(step, judged.as_numbers()) for step, judged in self.history],
        }
        _write(self._folder / _CHECKPOINT, state)

    def _restore(self) -> None:
        state = torch.load(self._folder / _CHECKPOINT, self._embeddings.device, weights_only=True)
        self.student.load_state_dict(state["student"])
        self._optimiser.restore(state["optimiser"])
        self._epoch, self._batches = state["place"]
        self._loss = state["loss"]
        self.history = [(step, Judgement.of_numbers(each)) for step, each in state["history"]]


def _score(judged: Judgement) -> float:
    return judged.score


def _write(path: Path, state: dict[str, Any]) -> None:
    """Write what torch.load reads, whole or not at all. Raises StateUnavailable."""
    part = path.with_suffix(".part")
    try:
        torch.save(state, part)
        os.replace(part, path)
    except (OSError, RuntimeError) as error:  # torch's own writer raises the latter
        part.unlink(missing_ok=True)
        raise StateUnavailable(f"cannot write {path}: {error}") from None


def computes_bf16(device: str) -> bool:
    """Return whether bf16 is quicker there than f32: on CPUs without it, it is five times slower.

    Measured on a Xeon with AVX-512 and without AMX: 22 against 116 GFLOP/s a core.
    """
    if device == "cpu":
        return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())
    return device == "cuda" and torch.cuda.is_bf16_supported()
