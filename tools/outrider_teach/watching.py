"""Keeps teaching: from what a served target writes down, one better head after the other.

A lesson begins once enough was written since the last one. It continues from the head that there
is, with the newest texts. Its head takes that one's place if it is accepted more often on held-out
texts of the last day; the running target then takes the file (docs/drafts.md).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import InvalidConfig
from outrider.kept_rows import Kept, KeptText
from outrider_cli.screen import Progress as Screen
from outrider_teach.export import read_head
from outrider_teach.head import EagleHead
from outrider_teach.target_weights import TargetFile
from outrider_teach.teaching import Lesson, Teaching, newest, split
from outrider_teach.training import TrainingConfig
from outrider_teach.work_folder import WorkFolder

LEAST_GAIN = 0.01
"""Of what is accepted of three tokens, for a head to take another's place. Chosen, not measured:
both are judged on the same tokens, of which there are about 1,300 of 20,000 new ones."""
_LOOK_SECONDS = 10.0  # s; between two looks at what was written
_JUDGED_SECONDS = 24 * 3600.0  # s; held-out texts by which heads are compared are no older
_NICE = 19  # who writes goes first


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What is watched, and what a lesson may take."""

    target: TargetFile
    rows: Path
    """The folder that a served target fills."""
    head: Path
    """The file that this target takes."""
    folder: WorkFolder
    config: TrainingConfig
    minutes: float
    """Of a lesson, at most."""
    tokens: int
    """Answered ones that a lesson learns from at most, the newest."""
    new_tokens: int
    """Answered ones after which a lesson begins."""


class Watcher:
    """Teaches lesson after lesson. Killed, it begins the lesson again that it was at."""

    def __init__(self, watch: Watch, say: Callable[[str], None], screen: Screen) -> None:
        self._watch, self._say, self._screen = watch, say, screen

    def run(self) -> None:
        """Teach until Ctrl-C or SIGTERM, which raise KeyboardInterrupt."""
        os.nice(_NICE)
        while True:
            if not self.look():
                time.sleep(_LOOK_SECONDS)

    def look(self) -> bool:
        """Teach a lesson if enough was written; return whether it was."""
        watch = self._watch
        texts = Kept(watch.rows).texts
        new = sum(text.answered for text in texts if text.written > watch.folder.learned)
        if new < watch.new_tokens:
            self._screen.say(f"waiting: {new:,} of {watch.new_tokens:,} new tokens")
            return False
        self._screen.say("reading what was written")
        try:
            self._teach(texts)
        except InvalidConfig as error:  # too few texts that are held out, say
            self._say(f"no lesson: {error}")
        watch.folder.end_lesson(max(text.written for text in texts))
        return True

    def _teach(self, texts: Sequence[KeptText]) -> None:
        """Teach a lesson, and let its head take the place of the one before if it is better."""
        before = self._head_before()
        teaching = Teaching(self._lesson(texts, before))
        scored = None if before is None else teaching.judge(before)
        steps, _ = teaching.steps_of(self._watch.minutes)
        if not teaching.run(steps, self._screen):
            raise KeyboardInterrupt
        found = teaching.judge(teaching.student)
        words = f"accepts {found.greedy.accepted:.3f} of 3, {found.sampled.accepted:.3f} at T .8"
        if scored is not None:
            words += f"; before {scored.greedy.accepted:.3f}, {scored.sampled.accepted:.3f}"
        if scored is None or found.score > scored.score + LEAST_GAIN:
            teaching.export(self._watch.head)
            self._say(f"new head: {words}")
        else:
            self._say(f"no better: {words}")

    def _head_before(self) -> EagleHead | None:
        """Return the head that the target has; None where there is none to continue from."""
        if not self._watch.head.exists():
            return None
        try:
            return read_head(self._watch.head, self._watch.target)
        except InvalidConfig as error:
            self._say(f"begins anew: {error}")
            return None

    def _lesson(self, texts: Sequence[KeptText], start: EagleHead | None) -> Lesson:
        watch = self._watch
        folder = watch.folder.training / "lesson"
        shutil.rmtree(folder, ignore_errors=True)  # of other texts, where it was killed
        folder.mkdir()
        learned, held_out = split(texts)
        since = time.time() - _JUDGED_SECONDS
        return Lesson(
            target=watch.target,
            layers=Kept(watch.rows).source.layers,
            texts=list(newest(learned, watch.tokens)),
            held_out=[text for text in held_out if text.written >= since],
            folder=folder,
            config=watch.config,
            start=start,
        )
