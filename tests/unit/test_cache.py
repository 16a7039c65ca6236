"""Who owns which sequence: reuse, eviction, and what a placed session is said to hold."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outrider.engine.cache import (
    SHARED_PREFIX_MINIMUM,
    Placement,
    Session,
    SessionCache,
    common_prefix,
    tokens_to_keep,
)

SETTINGS = settings(derandomize=True, deadline=None)
SHORT = st.lists(st.integers(0, 2), max_size=8)

LONG = list(range(100, 120))
"""Long enough to be worth copying."""


def placed(
    cache: SessionCache, name: bytes, text: list[int], now: float, pinned: bool = False
) -> Session:
    """Enter a session, give it a sequence and let it hold a text."""
    session = cache.enter(name, now)
    assert cache.place(session, text, ()) is not None
    session.token_ids[:] = text
    session.pinned = pinned
    return session


# how much is kept


def test_a_common_prefix_ends_at_the_first_difference() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert common_prefix([1, 2], [1, 2, 3]) == 2
    assert common_prefix([], [1]) == 0
    assert common_prefix([2], [1]) == 0


@SETTINGS
@given(SHORT, SHORT)
def test_a_common_prefix_is_common_and_the_longest(left: list[int], right: list[int]) -> None:
    count = common_prefix(left, right)
    assert left[:count] == right[:count]
    assert left[count : count + 1] != right[count : count + 1] or count == len(left) == len(right)


def test_a_position_whose_row_is_wanted_is_decoded_again() -> None:
    assert tokens_to_keep([1, 2, 3, 4], [1, 2, 3, 4], 1) == 3
    assert tokens_to_keep([1, 2, 3, 4], [1, 2, 3, 4], 3) == 1
    assert tokens_to_keep([1, 2, 3, 4, 5], [1, 2, 3, 4], 1) == 3


def test_what_differs_is_not_kept() -> None:
    assert tokens_to_keep([1, 9, 3], [1, 2, 3, 4], 1) == 1
    assert tokens_to_keep([], [1, 2], 1) == 0


# places


def test_a_new_session_gets_a_free_sequence_and_holds_nothing() -> None:
    cache = SessionCache(2)
    session = cache.enter(b"a", 1.0)
    placement = cache.place(session, [1, 2], ())
    assert placement is not None
    assert (placement.donor, placement.count) == (None, 0)
    assert session.sequence == placement.sequence
    assert session.token_ids == []


def test_a_session_entered_twice_is_the_same_one() -> None:
    cache = SessionCache(1)
    session = cache.enter(b"a", 1.0)
    assert cache.enter(b"a", 2.0) is session
    assert session.used_time == 2.0
    assert len(cache) == 1


def test_sequences_are_given_out_once() -> None:
    cache = SessionCache(3)
    sequences = {placed(cache, bytes([i]), [i], 0.0).sequence for i in range(3)}
    assert sequences == {0, 1, 2}


def test_a_forgotten_session_frees_its_sequence() -> None:
    cache = SessionCache(1)
    placed(cache, b"a", [1], 0.0, pinned=True)
    cache.forget(b"a")
    assert cache.get(b"a") is None
    assert placed(cache, b"b", [2], 1.0).sequence == 0


def test_forgetting_a_stranger_does_nothing() -> None:
    cache = SessionCache(1)
    cache.forget(b"nobody")
    cache.enter(b"waits", 0.0)
    cache.forget(b"waits")
    assert placed(cache, b"a", [1], 1.0).sequence == 0


# eviction


def test_the_least_recently_used_session_goes_first() -> None:
    cache = SessionCache(3)
    for i, name in enumerate([b"a", b"b", b"c"]):
        placed(cache, name, [i], float(i))
    cache.enter(b"a", 9.0)
    freed = cache.sequence_of(b"b")
    assert placed(cache, b"d", [7], 10.0).sequence == freed
    assert cache.get(b"b") is None
    assert cache.get(b"a") is not None


def test_a_pinned_session_is_never_evicted() -> None:
    cache = SessionCache(2)
    placed(cache, b"old", [1], 0.0, pinned=True)
    placed(cache, b"new", [2], 5.0)
    placed(cache, b"third", [3], 6.0)
    assert cache.get(b"old") is not None
    assert cache.get(b"new") is None


@pytest.mark.fault(
    "others",
    "streams that are open and ask nothing keep every sequence",
    before="a session was never evicted while its stream was open",
    now="one whose stream was idle for a second is evicted when room is short, and stays known",
)
def test_a_pinned_session_that_was_idle_for_long_gives_its_sequence_and_stays_known() -> None:
    cache = SessionCache(2)
    idle = placed(cache, b"idle", [1], 0.0, pinned=True)
    placed(cache, b"fresh", [2], 5.0, pinned=True)
    placement = cache.place(cache.enter(b"third", 6.0), [3], (), idle_since=5.0)
    assert placement is not None and placement.sequence == 0
    assert cache.get(b"idle") is idle
    assert (idle.sequence, idle.token_ids, idle.pinned) == (None, [], True)
    assert cache.place(cache.enter(b"fourth", 7.0), [4], {b"third"}, idle_since=5.0) is None


def test_a_session_without_a_stream_is_evicted_before_one_with() -> None:
    cache = SessionCache(2)
    placed(cache, b"idle", [1], 0.0, pinned=True)
    placed(cache, b"left", [2], 5.0)
    assert cache.place(cache.enter(b"third", 6.0), [3], (), idle_since=5.0) is not None
    assert cache.get(b"left") is None
    assert cache.sequence_of(b"idle") is not None


def test_a_busy_session_is_never_evicted() -> None:
    cache = SessionCache(2)
    placed(cache, b"old", [1], 0.0)
    placed(cache, b"new", [2], 5.0)
    assert cache.place(cache.enter(b"third", 6.0), [3], {b"old"}) is not None
    assert cache.get(b"old") is not None
    assert cache.get(b"new") is None


def test_there_is_no_place_while_every_sequence_is_in_use() -> None:
    cache = SessionCache(2)
    placed(cache, b"a", [1], 0.0, pinned=True)
    placed(cache, b"b", [2], 0.0)
    session = cache.enter(b"c", 1.0)
    assert cache.place(session, [3], {b"b"}) is None
    assert session.sequence is None
    assert len(cache) == 3


# sharing


def test_a_long_common_start_is_copied_from_its_holder() -> None:
    cache = SessionCache(2)
    donor = placed(cache, b"a", [*LONG, 1, 2], 0.0)
    session = cache.enter(b"b", 1.0)
    placement = cache.place(session, [*LONG, 7], ())
    assert placement == Placement(1 - donor.sequence, donor.sequence, len(LONG))  # type: ignore[operator]
    assert session.token_ids == LONG
    assert donor.token_ids == [*LONG, 1, 2]


def test_a_short_common_start_is_not_worth_a_copy() -> None:
    cache = SessionCache(2)
    start = LONG[: SHARED_PREFIX_MINIMUM - 1]
    placed(cache, b"a", [*start, 1], 0.0)
    placement = cache.place(cache.enter(b"b", 1.0), [*start, 2], ())
    assert placement is not None
    assert (placement.donor, placement.count) == (None, 0)


def test_the_longest_common_start_wins() -> None:
    cache = SessionCache(3)
    placed(cache, b"a", LONG[:17], 0.0)
    best = placed(cache, b"b", LONG, 0.0)
    placement = cache.place(cache.enter(b"c", 1.0), [*LONG, 5], ())
    assert placement is not None
    assert (placement.donor, placement.count) == (best.sequence, len(LONG))


def test_the_donor_is_the_last_to_be_evicted() -> None:
    cache = SessionCache(2)
    donor = placed(cache, b"donor", [*LONG, 1], 0.0)
    placed(cache, b"other", [9], 5.0)
    placement = cache.place(cache.enter(b"c", 6.0), [*LONG, 2], ())
    assert placement is not None
    assert placement.donor == donor.sequence != placement.sequence
    assert cache.get(b"donor") is donor
    assert cache.get(b"other") is None


def test_the_only_sequence_changes_hands_without_a_copy() -> None:
    cache = SessionCache(1)
    placed(cache, b"donor", [*LONG, 1], 0.0)
    session = cache.enter(b"c", 1.0)
    assert cache.place(session, [*LONG, 2], ()) == Placement(0, 0, len(LONG))
    assert session.token_ids == LONG
    assert cache.get(b"donor") is None


def test_a_pinned_session_lends_its_start() -> None:
    cache = SessionCache(2)
    donor = placed(cache, b"a", LONG, 0.0, pinned=True)
    placement = cache.place(cache.enter(b"b", 1.0), LONG, ())
    assert placement is not None
    assert placement.donor == donor.sequence


# expiry


def test_idle_sessions_expire_and_others_stay() -> None:
    cache = SessionCache(4)
    placed(cache, b"old", [1], 0.0)
    placed(cache, b"pinned", [2], 0.0, pinned=True)
    placed(cache, b"busy", [3], 0.0)
    placed(cache, b"new", [4], 10.0)
    assert cache.expire(10.0, {b"busy"}) == 1
    assert cache.get(b"old") is None
    assert all(cache.get(name) for name in (b"pinned", b"busy", b"new"))


def test_an_expired_session_frees_its_sequence() -> None:
    cache = SessionCache(1)
    placed(cache, b"a", [1], 0.0)
    assert cache.expire(1.0, ()) == 1
    placement = cache.place(cache.enter(b"b", 2.0), [2], ())
    assert placement == Placement(0, None, 0)


# everything at once


NAMES = [b"a", b"b", b"c", b"d", b"e"]
TEXTS = [[*LONG[:cut], tail] for cut in (0, 10, 16, 20) for tail in (1, 2)]


class CacheMachine(RuleBasedStateMachine):
    """An engine that enters, decodes, pins, forgets and expires as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = SessionCache(3)
        self.now = 0.0
        self.cells: dict[int, list[int]] = {0: [], 1: [], 2: []}  # what the model really holds
        self.pins: set[bytes] = set()

    @rule(
        name=st.sampled_from(NAMES),
        text=st.sampled_from(TEXTS),
        busy=st.sets(st.sampled_from(NAMES)),
    )
    def run_a_job(self, name: bytes, text: list[int], busy: set[bytes]) -> None:
        self.now += 1.0
        session = self.cache.enter(name, self.now)
        if session.sequence is None and not self._place(session, text, busy | {name}):
            return
        assert session.sequence is not None
        kept = tokens_to_keep(session.token_ids, text, 1)
        self.cells[session.sequence][kept:] = text[kept:]
        session.token_ids[kept:] = text[kept:]

    def _place(self, session: Session, text: list[int], busy: set[bytes]) -> bool:
        before = self._owners()
        placement = self.cache.place(session, text, busy)
        if placement is None:
            assert len(before) == 3
            assert all(name in busy or name in self.pins for name in before)
            return False
        lost = before.keys() - self._owners().keys()
        assert not lost & (busy | self.pins)
        assert len(lost) <= 1
        if lost:
            idle = {n: t for n, t in before.items() if n not in busy | self.pins}
            [victim] = lost
            oldest = min(idle.values())
            # The donor alone may be spared.
            assert idle[victim] == oldest or placement.donor is not None
        self._copy(placement)
        assert session.token_ids == text[: placement.count]
        return True

    def _copy(self, placement: Placement) -> None:
        """Do to the cells what the host does to the model."""
        if placement.donor is not None:
            self.cells[placement.sequence] = self.cells[placement.donor][: placement.count]
        else:
            self.cells[placement.sequence] = []

    def _owners(self) -> dict[bytes, float]:
        sessions = [s for n in NAMES if (s := self.cache.get(n)) and s.sequence is not None]
        return {s.session_id: s.used_time for s in sessions}

    @rule(name=st.sampled_from(NAMES))
    def pin(self, name: bytes) -> None:
        self.now += 1.0
        self.cache.enter(name, self.now).pinned = True
        self.pins.add(name)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.pins)))
        session = self.cache.get(name)
        assert session is not None
        session.pinned = False
        self.pins.discard(name)

    @rule(name=st.sampled_from(NAMES))
    def forget(self, name: bytes) -> None:
        self.cache.forget(name)
        self.pins.discard(name)
        assert self.cache.get(name) is None

    @rule(age=st.integers(0, 6), busy=st.sets(st.sampled_from(NAMES)))
    def expire(self, age: int, busy: set[bytes]) -> None:
        known = {n for n in NAMES if self.cache.get(n)}
        count = self.cache.expire(self.now - age, busy)
        left = {n for n in NAMES if self.cache.get(n)}
        assert len(known - left) == count
        assert not (known - left) & (busy | self.pins)

    @rule(pair=st.permutations([0, 1, 2]))
    def exchange(self, pair: list[int]) -> None:
        first, second, _ = pair
        before = {n: self.cache.sequence_of(n) for n in NAMES}
        self.cache.exchange(first, second)
        self.cells[first], self.cells[second] = self.cells[second], self.cells[first]
        other = {first: second, second: first}
        for name, sequence in before.items():
            moved = None if sequence is None else other.get(sequence, sequence)
            assert self.cache.sequence_of(name) == moved

    @invariant()
    def no_sequence_is_owned_twice(self) -> None:
        sessions = [s for n in NAMES if (s := self.cache.get(n))]
        owned = [s.sequence for s in sessions if s.sequence is not None]
        assert len(set(owned)) == len(owned)
        assert set(owned) <= {0, 1, 2}

    @invariant()
    def a_pinned_session_is_known(self) -> None:
        assert all(self.cache.get(name) for name in self.pins)

    @invariant()
    def what_is_said_to_be_held_is_held(self) -> None:
        for session in (s for n in NAMES if (s := self.cache.get(n))):
            if session.sequence is None:
                assert session.token_ids == []
            else:
                assert self.cells[session.sequence] == session.token_ids


CacheMachine.TestCase.settings = settings(
    derandomize=True, deadline=None, max_examples=60, stateful_step_count=40
)
TestTheCacheKeepsItsPromises = CacheMachine.TestCase


def test_a_new_session_gets_the_free_sequence_next_to_those_in_use() -> None:
    cache = SessionCache(4)
    for name, sequence in ((b"a", 0), (b"b", 1), (b"c", 2)):
        session = cache.enter(name, 0.0)
        session.pinned = True
        placement = cache.place(session, [], set())
        assert placement is not None and placement.sequence == sequence


# whose cache it is


@pytest.mark.fault(
    "others",
    "another caller's prompt can be read off the count of cached tokens",
    before="a prefix was counted and copied from every session, other callers' too",
    now="only sessions of the same cache salt are counted or copied from",
)
def test_a_session_of_another_salt_is_neither_counted_nor_copied() -> None:
    cache = SessionCache(3)
    hers = cache.enter(b"alice", 1.0)
    assert cache.place(hers, LONG, (), b"a") is not None
    hers.token_ids[:] = LONG
    assert cache.cached_count([*LONG, 1], b"a") == len(LONG)
    assert cache.cached_count([*LONG, 1], b"b") == 0
    assert cache.cached_count([*LONG, 1], b"") == 0
    his = cache.place(cache.enter(b"bob", 2.0), [*LONG, 1], (), b"b")
    assert his is not None and his.donor is None and his.count == 0
    again = cache.place(cache.enter(b"alice again", 3.0), [*LONG, 1], (), b"a")
    assert again is not None and again.count == len(LONG)


def test_a_sequence_taken_over_from_another_salt_keeps_nothing() -> None:
    cache = SessionCache(1)
    hers = cache.enter(b"alice", 1.0)
    assert cache.place(hers, LONG, (), b"a") is not None
    hers.token_ids[:] = LONG
    assert cache.place(cache.enter(b"bob", 2.0), LONG, (), b"b") == Placement(0, None, 0)


# room in a pool


def test_a_pool_gives_room_for_what_sessions_may_grow_to() -> None:
    cache = SessionCache(8, cells=100)
    assert cache.place(cache.enter(b"long", 0.0), [1], {b"long"}, room=70) is not None
    assert cache.place(cache.enter(b"short", 1.0), [2], {b"long"}, room=30) is not None
    third = cache.enter(b"third", 2.0)
    assert cache.place(third, [3], {b"long", b"short"}, room=1) is None
    cache.end_work(b"long", 3.0)
    assert cache.place(third, [3], {b"short"}, room=69) is not None, "only what is held counts"
    assert cache.get(b"long") is not None


def test_a_pool_evicts_as_many_idle_sessions_as_are_in_the_way_and_no_more() -> None:
    cache = SessionCache(8, cells=100)
    for i in range(4):
        placed(cache, bytes([i]), list(range(25 * i, 25 * i + 25)), float(i))
    new = cache.enter(b"new", 9.0)
    assert cache.place(new, [7], {b"\1"}, room=40) is not None
    assert [bytes([i]) for i in range(4) if cache.get(bytes([i]))] == [b"\1", b"\3"]
    assert cache.take_left() == {0, 2} - {new.sequence}
    assert cache.place(cache.enter(b"more", 9.0), [8], {b"\1", b"new"}, room=99) is None
    assert cache.get(b"\3") is not None, "nobody is evicted where that does not do"


def test_a_session_with_a_sequence_waits_for_the_room_of_a_longer_job() -> None:
    cache = SessionCache(8, cells=100)
    first = cache.enter(b"first", 0.0)
    assert cache.place(first, [1], (), room=50) is not None
    first.token_ids[:] = range(50)
    other = cache.enter(b"other", 0.0)
    assert cache.place(other, [2], {b"first"}, room=50) is not None
    assert cache.place(first, [1], {b"first", b"other"}, room=60) is None
    cache.forget(b"other")
    placement = cache.place(first, [1], {b"first"}, room=60)
    assert placement == Placement(first.sequence or 0, None, 50)
    assert first.reserved == 60


def test_idle_sessions_keep_no_more_cells_of_a_pool_than_are_meant_for_them() -> None:
    cache = SessionCache(16, cells=1000, idle_cells=50)
    placed(cache, b"open", list(range(200, 300)), 0.0, pinned=True)
    for i in range(6):
        placed(cache, bytes([i]), list(range(25 * i, 25 * i + 25)), 1.0 + i)
    # Each makes room for itself: the two newest idle ones stay beside the newest of all.
    assert [i for i in range(6) if cache.get(bytes([i]))] == [3, 4, 5]
    assert cache.get(b"open") is not None


def test_a_token_is_tried_in_a_free_sequence_or_after_the_oldest_text() -> None:
    cache = SessionCache(2)
    placed(cache, b"new", [1, 2], 5.0)
    spare = cache.spare()
    assert cache.is_free(spare.sequence or 0) and not spare.token_ids
    placed(cache, b"old", [3], 1.0)
    assert cache.spare() is cache.get(b"old")


def test_what_is_cached_is_counted_though_the_cache_changes_meanwhile() -> None:
    cache, prompt = SessionCache(4), [i % 7 for i in range(600)]
    placed(cache, b"known", prompt, 0.0)
    stop = threading.Event()

    def change() -> None:
        for i in itertools.count():
            if stop.is_set():
                return
            name = b"%d" % i
            placed(cache, name, [*prompt[:300], 8, i], 1.0 + i)
            session = cache.get(name)
            assert session is not None
            del session.token_ids[i % 20 :]
            cache.forget(name)

    with ThreadPoolExecutor(1) as other:
        changing = other.submit(change)
        try:
            for _ in range(100):
                assert cache.cached_count([*prompt, 1], b"") == 600
                assert cache.cached_count([*prompt[:300], 8, 9], b"") in (300, 301)
        finally:
            stop.set()
        changing.result(30)
