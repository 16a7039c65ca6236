"""The values that the services exchange: spans, and when two rounds contradict each other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import ContextExhausted, ModelChanged, PositionPastCache
from outrider.messages import (
    ANY_MODEL,
    Form,
    ModelReference,
    Round,
    Rows,
    Span,
    check_room,
    compose,
    contradicts,
)

IDS = st.lists(st.integers(0, 9), max_size=12)
SETTINGS = settings(derandomize=True, deadline=None)


def round_at(position: int, ids: list[int], draft: list[int]) -> Round:
    return Round(1, Span(position, ids), draft, Form.SAMPLED)


# spans


def test_a_span_replaces_everything_from_its_position_on() -> None:
    assert compose([1, 2, 3, 4], Span(2, [9])) == [1, 2, 9]


def test_a_span_at_the_end_appends() -> None:
    assert compose([1, 2], Span(2, [3, 4])) == [1, 2, 3, 4]


def test_an_empty_span_cuts() -> None:
    assert compose([1, 2, 3], Span(1, [])) == [1]


def test_a_span_from_the_start_needs_nothing_held() -> None:
    assert compose([], Span(0, [5, 6])) == [5, 6]


def test_a_span_past_what_is_held_says_what_is_held() -> None:
    with pytest.raises(PositionPastCache) as caught:
        compose([1, 2], Span(3, [4]))
    assert caught.value.held == 2
    assert caught.value.metadata == {"cachedTokenCount": "2"}
    assert "starts at 3" in str(caught.value)


@SETTINGS
@given(held=IDS, text=IDS, data=st.data())
def test_a_span_means_the_text_to_everyone_who_holds_its_start(
    held: list[int], text: list[int], data: st.DataObject
) -> None:
    agreed = sum(1 for i in range(min(len(held), len(text))) if held[: i + 1] == text[: i + 1])
    position = data.draw(st.integers(0, agreed))
    span = Span(position, text[position:])
    assert compose(held, span) == text
    assert span.end == len(text)


@SETTINGS
@given(text=IDS, data=st.data())
def test_the_reported_count_is_where_the_text_can_be_sent_again_from(
    text: list[int], data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(text)))
    held = text[: data.draw(st.integers(0, len(text)))]
    try:
        whole = compose(held, Span(position, text[position:]))
    except PositionPastCache as missing:
        whole = compose(held, Span(missing.held, text[missing.held :]))
    assert whole == text


def test_composing_leaves_what_is_held_as_it_is() -> None:
    held = [1, 2, 3]
    compose(held, Span(1, [7]))
    assert held == [1, 2, 3]


# room


def test_a_text_as_long_as_the_context_fits() -> None:
    check_room(8, 8)


def test_a_text_longer_than_the_context_does_not_fit() -> None:
    with pytest.raises(ContextExhausted, match="9 tokens do not fit a context of 8") as caught:
        check_room(9, 8)
    assert caught.value.capacity == 8


# contradictions


def test_a_round_that_follows_an_accepted_draft_contradicts_nothing() -> None:
    earlier = round_at(0, [1, 2], [3, 4])
    assert not contradicts(earlier, round_at(2, [3, 4, 5], []))


def test_a_round_that_follows_a_rejection_contradicts() -> None:
    earlier = round_at(0, [1, 2], [3, 4])
    assert contradicts(earlier, round_at(2, [3, 9], []))


def test_a_round_that_starts_after_all_that_was_assumed_contradicts_nothing() -> None:
    assert not contradicts(round_at(0, [1, 2], [3]), round_at(3, [7], []))
    assert not contradicts(round_at(0, [1, 2], [3]), round_at(5, [7], []))


def test_a_round_from_an_earlier_position_contradicts() -> None:
    assert contradicts(round_at(4, [5], []), round_at(0, [1, 2, 3, 4, 5], []))


def test_the_same_prefix_with_another_draft_contradicts_nothing() -> None:
    assert not contradicts(round_at(0, [1, 2], [3]), round_at(0, [1, 2], [8]))


def test_another_prefix_contradicts() -> None:
    assert contradicts(round_at(0, [1, 2], []), round_at(0, [1, 9], []))


@SETTINGS
@given(prefix=st.lists(st.integers(0, 2), min_size=1, max_size=6), draft=IDS, data=st.data())
def test_a_later_round_contradicts_exactly_when_a_token_differs(
    prefix: list[int], draft: list[int], data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(prefix) + len(draft)))
    own = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
    assumed = dict(enumerate([*prefix, *draft]))
    differs = any(assumed.get(position + i, t) != t for i, t in enumerate(own))
    assert contradicts(round_at(0, prefix, draft), round_at(position, own, [])) == differs


# counts


def test_a_round_asks_for_a_row_more_than_its_draft() -> None:
    assert round_at(0, [1, 2, 3], [4, 5]).row_count == 3
    assert round_at(0, [1, 2, 3], []).row_count == 1


def test_rows_are_counted_in_whatever_form_they_come() -> None:
    assert len(Rows()) == 0
    assert len(Rows(sampled=[1, 2])) == 2
    assert len(Rows(logits=[b"", b"", b""])) == 3


# models


def test_the_identity_says_which_model_is_meant() -> None:
    meant = ModelReference(b"1", "small")
    meant.check(ModelReference(b"1", "renamed"))
    ANY_MODEL.check(meant)
    with pytest.raises(ModelChanged):
        meant.check(ModelReference(b"2", "small"))
