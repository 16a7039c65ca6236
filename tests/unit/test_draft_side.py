"""The draft of one generation: when one is leased, waited for, and left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.draft_side import DraftSide
from orchestrator.event_queue import EventQueue
from orchestrator.timings import Timings


class Draft:
    """A draft that can be leased."""

    def __init__(self) -> None:
        self.peer = SimpleNamespace(hosted=object())
        self.silent_count = 0

    def note_silent(self) -> None:
        self.silent_count += 1

    def pair_beside(self, target: object) -> object:
        return target


class Lease:
    """A draft that is leased until `end`."""

    def __init__(self, pool: DraftPool) -> None:
        self.leased = pool.draft
        self._pool = pool
        pool.leases.append(self)

    def end(self) -> None:
        self._pool.leases.remove(self)


class DraftPool:
    """A pool with one draft, while it is there."""

    may_have_draft = True

    def __init__(self) -> None:
        self.draft, self.is_there = Draft(), True
        self.leases: list[Lease] = []

    def lease_draft(self, *_: object) -> Lease | None:
        return Lease(self) if self.is_there else None


class Control:
    """A control that wants something of a draft where that is said."""

    needs_stream = False
    speculation = SimpleNamespace(drafts=True)

    def note_pair(self, pair: object) -> None:
        """Take it."""


class Side(DraftSide):
    """The draft side of a text of nobody; its events happen at once."""

    def __init__(self) -> None:
        self.control, self.pool = Control(), DraftPool()
        opening = SimpleNamespace(rule=None, salt=b"")
        plan = SimpleNamespace(opening=opening, control=self.control)
        self.generation: Any = SimpleNamespace(plan=plan, committed=[1], draft_is_silent=False)
        pool: Any = self.pool
        self.events = EventQueue[Any](self._follow)
        super().__init__(self.generation, pool, self.events, Timings(0.0), self._no_target, None)

    def _no_target(self) -> Any:
        """Return what nothing here reads."""

    def _follow(self) -> list[Any]:
        self.open_if_needed()
        return []


@pytest.mark.fault(
    "hang",
    "A target's own draft drafts nothing any more, and the draft that was put off is away",
    before="each try to lease one began two more, ten times a second, until the process hung",
    now="one try at a time waits for a draft",
)
async def test_a_draft_that_was_put_off_and_is_away_is_waited_for_once() -> None:
    side = Side()
    side.open()
    assert side.leased is side.pool.draft
    side.pool.is_there = False
    side.control.needs_stream = True
    for _ in range(3):
        side.events.happen(lambda: None)  # messages of the target
    assert side.leased is None and side.pool.leases == []
    for _ in range(3):
        [timer] = side.events._timers
        side.events.forget(timer)
        side.events.happen(side.open)  # as it would have, once it fired
    assert len(side.events._timers) == 1
    side.events.close()


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_text_says_of_its_draft_at_its_end_that_nothing_came(is_silent: bool) -> None:
    side = Side()
    side.open()
    side.generation.draft_is_silent = is_silent
    draft = side.pool.draft
    side.close()
    assert draft.silent_count == is_silent
    side.close()
    assert draft.silent_count == is_silent, "it is leased no more"
