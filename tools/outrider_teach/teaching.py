"""Teaches a head or a draft model from a folder of kept rows, and writes its file."""

from __future__ import annotations

import copy
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from types import FrameType

import torch

from outrider.errors import InvalidConfig
from outrider.kept_rows import KeptText
from outrider_cli.screen import Progress as Screen
from outrider_teach.acceptance import Judgement, curve, draw_curve
from outrider_teach.batches import is_held_out
from outrider_teach.draft import DraftModel, new_draft
from outrider_teach.export import write_draft, write_head
from outrider_teach.head import EagleHead
from outrider_teach.judging import judge
from outrider_teach.student import Student
from outrider_teach.target_weights import TargetFile
from outrider_teach.training import Progress, Training, TrainingConfig, new_head
from outrider_teach.work_progress import WorkProgress

_EPOCHS = 12  # over the texts at most, where the time is enough: chosen, not measured
_PROBED = 4  # steps that are tried, of which the first is not timed
_MOST_JUDGED = (
    24_000  # tokens of held-out texts that heads are judged by, the newest: chosen, not measured
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What is taught, from what, and where it is kept meanwhile."""

    target: TargetFile
    layers: tuple[int, ...]
    """Of the target, whose rows a head reads; none: a draft model is taught."""
    texts: Sequence[KeptText]
    held_out: Sequence[KeptText]
    """What it is judged by; no prompt of these is in `texts`."""
    folder: Path
    """Of checkpoints."""
    config: TrainingConfig
    """Its steps are those that are possible."""
    start: EagleHead | None = None
    """What a head continues from; None: it begins anew."""

    @property
    def device(self) -> str:
        """What it is computed on."""
        return "cuda" if torch.cuda.is_available() else "cpu"


class Teaching:
    """A student that is being taught."""

    def __init__(self, lesson: Lesson) -> None:
        """Raises InvalidConfig where there are too few texts."""
        if lesson.start is not None:  # it knows drafts of one token
            lesson = replace(lesson, config=replace(lesson.config, single=0.0))
        self._lesson = lesson
        self._texts, self._held_out = lesson.texts, list(newest(lesson.held_out, _MOST_JUDGED))
        if not self._texts or not self._held_out:
            count = len(self._texts) + len(self._held_out)
            raise InvalidConfig("tokens", f"{count} texts are too few: write more (--tokens)")
        self.student = self._new().to(lesson.device)
        self._embeddings = torch.from_numpy(lesson.target.embeddings).to(lesson.device)

    def _new(self) -> Student:
        lesson = self._lesson
        if not lesson.layers:
            return new_draft(lesson.target, self._texts, lesson.config)
        head = new_head(lesson.target, lesson.layers, self._texts, lesson.config)
        if lesson.start is not None:
            head.begin_as(lesson.start)
        return head

    def judge(self, student: Student) -> Judgement:
        """Return what a student's drafts are worth on the held-out texts."""
        return judge(student.to(self._lesson.device), self._held_out, self._embeddings)

    def steps_of(self, minutes: float) -> tuple[int, float]:
        """Return how many steps fit the time, and the seconds of one with its share of judging.

        They are timed with a copy of the student, which is thrown away.
        """
        config = self._lesson.config
        begin = monotonic()
        self.judge(self.student)
        judged = monotonic() - begin
        single, whole = self._step_seconds(1), self._step_seconds(config.length)
        seconds = config.single * single + (1 - config.single) * whole
        seconds += judged / config.judged_every
        answered = sum(text.answered for text in self._texts)
        wanted = max(1, _EPOCHS * answered // config.tokens)
        return max(1, min(wanted, int(60 * minutes / seconds))), seconds

    def _step_seconds(self, length: int) -> float:
        """Return what a step takes that learns drafts of so many tokens."""
        config = replace(self._lesson.config, length=length, single=0.0, judged_every=2**31)
        times = [monotonic()]
        with tempfile.TemporaryDirectory(dir=self._lesson.folder) as folder:
            probe = self._training(copy.deepcopy(self.student), config, Path(folder))
            probe.run(lambda _: times.append(monotonic()), lambda: len(times) > _PROBED)
        known = times[1:] if len(times) > 2 else times  # the first one is slower
        return (known[-1] - known[0]) / (len(known) - 1)

    def run(self, steps: int, screen: Screen) -> bool:
        """Teach the student, from its last checkpoint on; return whether it came to the end.

        Ctrl-C and SIGTERM stop it after a step, with a checkpoint.
        """
        config = self._lesson.config
        config = replace(config, steps=steps, judged_every=min(config.judged_every, steps))
        training = self._training(self.student, config, self._lesson.folder)
        progress = WorkProgress("training", steps, screen, training.step, "steps")

        def report(at: Progress) -> None:
            best = training.best
            judged = f", accepts {best.greedy.accepted:.3f} of 3" if best is not None else ""
            progress.report(at.step, f"loss {at.loss:.3f}{judged}")

        with _stopped_by_signals() as is_stopped:
            training.run(report, is_stopped)
            screen.clear()
            self.history = training.history
            return not is_stopped()

    def _training(self, student: Student, config: TrainingConfig, folder: Path) -> Training:
        return Training(student, self._texts, self._held_out, self._embeddings, config, folder)

    def export(self, out: Path) -> list[str]:
        """Write its file, and its curve beside that; return the curve for a terminal."""
        if isinstance(self.student, EagleHead):
            write_head(out, self.student, self._lesson.target)
        elif isinstance(self.student, DraftModel):
            write_draft(out, self.student, self._lesson.target)
        lines = curve(self.history)
        picture = out.with_suffix(".png")
        if draw_curve(self.history, picture):
            lines.append(f"drawn in {picture}")
        return lines


def split(texts: Sequence[KeptText]) -> tuple[list[KeptText], list[KeptText]]:
    """Return those to learn from, and those to judge by."""
    held_out = [is_held_out(text) for text in texts]
    both = list(zip(texts, held_out, strict=True))
    return [text for text, is_out in both if not is_out], [text for text, is_out in both if is_out]


def newest(texts: Sequence[KeptText], most: int) -> Iterator[KeptText]:
    """Yield texts, the last first, until they have so many answered tokens."""
    held = 0
    for text in reversed(texts):
        if held >= most:
            return
        held += text.answered
        yield text


@contextmanager
def _stopped_by_signals() -> Iterator[Callable[[], bool]]:
    """Give what says whether Ctrl-C or SIGTERM came. A second one is as ever."""
    came: list[int] = []
    names = (signal.SIGINT, signal.SIGTERM)

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(number)
        for name, handler in zip(names, before, strict=True):
            signal.signal(name, handler)

    before = [signal.signal(name, stop) for name in names]
    try:
        yield lambda: bool(came)
    finally:
        for name, handler in zip(names, before, strict=True):
            signal.signal(name, handler)
