"""A prediction is followed, found again after an edit, and counted."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from outrider.drafters.prediction import PredictionSource
from outrider.drafters.source import Scored
from tests.support.operations import lines_run

PREDICTION = list(range(100, 200))


def misses(prediction: Sequence[int], text: Sequence[int]) -> int:
    """Return how many tokens of a text were not proposed just before they came."""
    source = PredictionSource(prediction)
    missed = 0
    for token_id in text:
        missed += source.propose(1).token_ids != [token_id]
        source.append([token_id])
    return missed


def test_a_right_prediction_is_proposed_from_the_first_token_on() -> None:
    source = PredictionSource(PREDICTION)
    assert source.propose(200).token_ids == PREDICTION
    source.append(PREDICTION[:40])
    assert source.propose(8).token_ids == PREDICTION[40:48]
    assert source.propose(8, after=PREDICTION[40:45]).token_ids == PREDICTION[45:53]
    source.append(PREDICTION[40:])
    assert source.propose(8).token_ids == []
    assert (source.accepted_token_count, source.rejected_token_count) == (100, 0)


@pytest.mark.parametrize(
    ("text", "missed"),
    [
        (PREDICTION[:50] + PREDICTION[60:], 1),  # deleted: the first token behind it
        ([*PREDICTION[:50], 1, 2, 3, *PREDICTION[50:]], 4),  # inserted
        ([*PREDICTION[:50], 1, *PREDICTION[51:]], 1),  # one replaced: no more than itself
        ([*PREDICTION[:50], 1, 2, *PREDICTION[52:]], 2),
        ([*PREDICTION[:50], 1, 2, *PREDICTION[55:]], 3),
        (PREDICTION[30:], 1),
        ([1, 2, *PREDICTION], 3),
        (PREDICTION[:50] + PREDICTION[20:], 3),  # repeated from far: two tokens prove nothing
    ],
)
def test_after_an_edit_it_goes_on(text: list[int], missed: int) -> None:
    assert misses(PREDICTION, text) <= missed


def test_edits_at_random_places_cost_their_length_and_a_token_each() -> None:
    choose = random.Random(3)
    for _ in range(30):
        prediction = choose.sample(range(10_000), 300)
        text: list[int] = []
        at = edits = new = 0
        while at < len(prediction):
            kept = choose.randint(6, 40)
            text += prediction[at : at + kept]
            inserted = choose.randint(0, 4)
            text += [10_000 + new + i for i in range(inserted)]
            at += kept + choose.randint(0, 20)
            edits, new = edits + 1, new + inserted
        assert misses(prediction, text) <= edits + new


def test_among_equal_places_the_one_that_agrees_longest_is_taken() -> None:
    prediction = [1, 2, 3, 50, 4, 2, 3, 60, 5, 2, 3, 70, *range(100, 120), 5, 2, 3, 80]
    source = PredictionSource(prediction)
    source.append([1, 2, 3, 999, 4, 2, 3])
    assert source.propose(2).token_ids == [60, 5]
    source = PredictionSource(prediction)
    source.append([1, 2, 3, 50, 999, 5, 2, 3])
    assert source.propose(1).token_ids == [70]  # 80 stands behind the same, but further away


def test_a_place_far_away_takes_more_than_one_token() -> None:
    prediction = [7, *range(1000, 1200), 8, 9, 10, 11]
    source = PredictionSource(prediction)
    source.append([7, 8])
    assert source.propose(1).token_ids != [9]
    source.append([9, 10])
    assert source.propose(1).token_ids == [11]


def test_accepted_tokens_are_those_that_came_where_they_were_expected() -> None:
    source = PredictionSource(PREDICTION)
    source.append(PREDICTION[:30])
    assert (source.accepted_token_count, source.rejected_token_count) == (30, 70)
    source.append([1, 2, *PREDICTION[40:70]])
    assert (source.accepted_token_count, source.rejected_token_count) == (60, 40)
    source.append([*PREDICTION[40:70]])  # once more
    assert (source.accepted_token_count, source.rejected_token_count) == (60, 40)


def test_a_token_here_and_there_is_not_counted() -> None:
    source = PredictionSource(PREDICTION)
    source.append([1, 110, 2, 120, 3, 130])
    assert source.accepted_token_count == 0


def test_confidence_rises_with_the_run_and_falls_with_an_edit() -> None:
    source = PredictionSource(PREDICTION)
    first = source.propose(2).confidences
    assert first[0] < first[1]
    source.append(PREDICTION[:30])
    sure = source.propose(1).confidences
    source.append([1])
    doubtful = source.propose(1).confidences
    assert doubtful < first[:1] < sure


def test_asking_changes_nothing() -> None:
    asked, other = PredictionSource(PREDICTION), PredictionSource(PREDICTION)
    choose = random.Random(1)
    for _ in range(200):
        asked.propose(4, after=choose.choices(PREDICTION, k=choose.randint(0, 5)))
        token_id = choose.choice([1, *PREDICTION[:6]])
        asked.append([token_id])
        other.append([token_id])
        assert asked.propose(4) == other.propose(4)
    assert asked.accepted_token_count == other.accepted_token_count


def test_all_that_it_says_can_be_scored() -> None:
    scored = Scored(PredictionSource(PREDICTION))
    for token_id in [*PREDICTION[:40], 1, 2, 3, *PREDICTION[50:]]:
        scored.propose(16)
        scored.append([token_id])
    assert scored.accepted_count >= 0.95 * scored.decided_count


def test_tokens_with_equal_hashes_are_told_apart() -> None:
    source = PredictionSource([5, (1 << 31) - 1, 6])
    source.append([9, 0])
    found, unseen = PredictionSource([5, 0, 6]), source.propose(1).confidences
    found.append([9, 0])
    assert unseen < found.propose(1).confidences


def test_an_empty_prediction_says_nothing() -> None:
    source = PredictionSource([])
    source.append([1, 2, 3])
    assert source.propose(4).token_ids == []
    assert source.propose(4, after=[5]).token_ids == []
    assert (source.accepted_token_count, source.rejected_token_count) == (0, 0)


HOSTILE = {
    "one token": (lambda i: 7, lambda i: 7 + i % 2),
    "a period": (lambda i: i % 5, lambda i: (3 * i) % 5),
    "two tokens": (lambda i: i * i % 7 % 2, lambda i: i * i % 11 % 2),
    "in reverse": (lambda i: i, lambda i: 100_000 - i),
}


@pytest.mark.parametrize(("predicted", "written"), HOSTILE.values(), ids=HOSTILE)
def test_a_token_costs_the_same_in_a_prediction_of_any_length(predicted, written) -> None:  # type: ignore[no-untyped-def]
    costs = []
    for size in (500, 20_000):
        source = PredictionSource([predicted(i) for i in range(size)])
        text = [written(i) for i in range(150)]
        costs.append(lines_run(lambda source=source, text=text: source.append(text)))
        assert lines_run(lambda source=source, text=text: source.propose(8, text)) <= costs[-1] * 2
        assert source.size_bytes < 40 * size + 1000
    assert costs[1] < 1.5 * costs[0] + 1000
    assert costs[1] < 500 * 150
