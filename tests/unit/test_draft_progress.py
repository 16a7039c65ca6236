"""What happens to a draft leaves it in one state, whatever it did before."""

from __future__ import annotations

import pytest

from outrider.core.draft_progress import TRANSITIONS, DraftEvent, DraftProgress, DraftState
from outrider.messages import Frame

ABSENT, IDLE = DraftState.ABSENT, DraftState.IDLE
DRAFTING, LATE = DraftState.DRAFTING, DraftState.LATE


def in_state(state: DraftState) -> DraftProgress:
    """Return a draft that came to a state the usual way, with a text of three tokens."""
    draft = DraftProgress()
    if state is not ABSENT:
        draft.open(100)
        if state is not IDLE:
            draft.extend([1, 2, 3], 7)
        if state is LATE:
            draft.note_overdue()
    return draft


@pytest.mark.parametrize(
    ("event", "states"),
    [
        (lambda d: d.open(100), {ABSENT: IDLE, IDLE: IDLE, DRAFTING: IDLE, LATE: IDLE}),
        (lambda d: d.lose(), {ABSENT: ABSENT, IDLE: ABSENT, DRAFTING: ABSENT, LATE: ABSENT}),
        (lambda d: d.extend([1, 2, 3], 9), {IDLE: DRAFTING, DRAFTING: DRAFTING, LATE: LATE}),
        (lambda d: d.note_completed(d.order), {IDLE: IDLE, DRAFTING: IDLE, LATE: IDLE}),
        (lambda d: d.note_missing(0, 3), {IDLE: IDLE, DRAFTING: IDLE, LATE: IDLE}),
        (lambda d: d.note_refused(), {IDLE: IDLE, DRAFTING: IDLE, LATE: IDLE}),
        (lambda d: d.note_overdue(), {DRAFTING: LATE}),
    ],
    ids=["opened", "lost", "ordered", "completed", "missing", "refused", "overdue"],
)
def test_every_event_leads_from_every_state_to_one(event, states) -> None:
    for before, after in states.items():
        draft = in_state(before)
        event(draft)
        assert draft.state is after


def test_every_event_has_its_row() -> None:
    assert TRANSITIONS.keys() == set(DraftEvent)


def test_nothing_is_ordered_of_an_absent_draft() -> None:
    with pytest.raises(KeyError):
        DraftProgress().extend([1, 2, 3], 7)


def test_a_new_stream_is_sent_the_whole_text() -> None:
    draft = in_state(DRAFTING)
    assert draft.known_length == 3
    draft.open(50)
    assert (draft.known_length, draft.needs_order, draft.context) == (0, True, 50)
    assert list(draft.extend([1, 2, 3, 4], 9).token_ids) == [1, 2, 3, 4]


def test_an_older_order_completes_nothing() -> None:
    draft = in_state(DRAFTING)
    draft.extend([1, 2, 3], 9)
    draft.note_completed(1)
    assert draft.state is DRAFTING


def test_a_draft_that_misses_the_text_twice_in_a_round_pauses() -> None:
    draft = in_state(DRAFTING)
    draft.note_missing(1, 3)
    assert (draft.known_length, draft.pause) == (1, 0)
    draft.extend([1, 2, 3], 9)
    draft.note_missing(1, 3)
    assert (draft.known_length, draft.pause) == (1, 1)


def test_held_tokens_that_were_never_sent_are_not_believed() -> None:
    draft = in_state(DRAFTING)
    draft.note_missing(5, 3)
    assert draft.known_length == 0


def test_a_pause_drops_the_line_and_counts_down() -> None:
    draft = in_state(DRAFTING)
    draft.line.add(Frame(base=3, position=3, token_ids=[7, 8], confidences=b"\xff\xff"), [1, 2, 3])
    draft.pause_for(2)
    assert not draft.line.token_ids
    for left in (1, 0, 0):
        draft.note_rounds(1)
        assert draft.pause == left


def test_a_draft_is_silent_while_it_owes_an_order_and_had_no_token() -> None:
    draft, said = DraftProgress(), list[bool]()
    for event in (
        lambda: draft.open(100),
        lambda: draft.extend([1, 2, 3], 9),
        draft.note_overdue,
        draft.note_refused,
        lambda: draft.extend([1, 2, 3, 4], 9),
        lambda: setattr(draft, "is_new", False),  # as with the first token
        lambda: draft.open(100),
        lambda: draft.extend([1, 2, 3, 4], 9),
        draft.lose,
        lambda: draft.open(100),
        lambda: draft.extend([1, 2, 3, 4], 4),  # it is only to read
    ):
        event()
        said.append(draft.is_silent)
    assert said == [False, True, True, False, True, False, False, True, False, False, False]
