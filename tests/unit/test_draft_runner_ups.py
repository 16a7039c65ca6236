"""Where a draft writes runner-up lines: behind which tokens, and which of them goes on first."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draft_service.runner_ups import RunnerUps
from outrider.engine.guesser import guesser
from outrider.messages import Rule
from outrider.sampling import GREEDY
from tests.support.toy import ToyModel
from tests.unit.test_line import PROMPT, WARM, opening

TEXT = [1, 2, 3]


def drafted(*tokens: list[tuple[int, float]], split: float = 0.05) -> tuple[RunnerUps, list[int]]:
    """Return a line of tokens, each with its chance and those of its runner-ups."""
    lines, line = RunnerUps(split_chance=split), list(TEXT)
    lines.start_over(TEXT)
    for chances in tokens:
        line.append(chances[0][0])
        lines.note(line, chances)
    return lines, line


SURE, CLOSE = [(10, 0.9), (11, 0.1)], [(20, 0.5), (21, 0.4), (22, 0.1)]


def test_the_likeliest_runner_up_gets_the_first_line() -> None:
    lines, _ = drafted(SURE, CLOSE)
    first, second = lines.take(9), lines.take(9)
    assert first is not None and second is not None
    assert (first.token_ids, first.fork, first.parent) == ([*TEXT, 10, 21], 4, 0)
    assert second.token_ids == [*TEXT, 11], "of two that are as likely the older one"


def test_a_runner_up_behind_an_unlikely_token_waits() -> None:
    lines, _ = drafted([(10, 0.2), (11, 0.15)], CLOSE)
    first = lines.take(9)
    assert first is not None and first.token_ids == [*TEXT, 11]


def test_no_line_is_begun_that_is_too_unlikely_or_ends_where_it_begins() -> None:
    lines, _ = drafted(CLOSE, split=0.2)
    assert [lines.take(9) is not None for _ in range(3)] == [True, False, False]
    lines, _ = drafted(SURE, CLOSE)
    assert lines.take(4) is None


def test_a_line_goes_on_where_that_is_likelier_than_another_one() -> None:
    lines, _ = drafted(SURE, CLOSE)
    branch = lines.take(9)
    assert branch is not None
    lines.extend(branch, 30, 200, [(30, 0.99)])
    assert lines.take(9) is branch
    lines.extend(branch, 31, 20, [(31, 0.1)])
    other = lines.take(9)
    assert other is not None and other.token_ids == [*TEXT, 11]


def test_a_line_of_a_line_is_named_by_both() -> None:
    lines, _ = drafted(CLOSE)
    branch = lines.take(9)
    assert branch is not None
    lines.extend(branch, 30, 200, [(30, 0.5), (31, 0.49)])
    branch.is_over = True
    leaf = lines.take(9)
    assert leaf is not None
    assert (leaf.number, leaf.parent, leaf.fork) == (2, branch.number, 4)
    assert leaf.token_ids == [*TEXT, 21, 31]


def test_the_text_takes_over_the_line_that_it_agrees_with() -> None:
    lines, _ = drafted(CLOSE, SURE)
    branch = lines.take(9)
    assert branch is not None
    lines.extend(branch, 30, 200, [(30, 0.6), (31, 0.4)])
    assert lines.adopt([*TEXT, 21]) is branch
    assert lines.number == branch.number
    left = lines.take(9)
    assert left is not None and left.token_ids == [*TEXT, 21, 31]
    assert lines.adopt([*TEXT, 40]) is None


def test_what_the_text_contradicts_is_forgotten_and_the_rest_is_likelier() -> None:
    lines, line = drafted([(10, 0.3), (11, 0.2)], CLOSE)
    lines.follow(line[:4])
    taken = [lines.take(9), lines.take(9), lines.take(9)]
    assert [each and each.token_ids for each in taken] == [
        [*TEXT, 10, 21],
        [*TEXT, 10, 22],
        None,
    ]
    assert taken[0] is not None and taken[0].survival == 0.4


def test_a_token_that_comes_too_late_for_its_line_changes_nothing() -> None:
    lines, _ = drafted(CLOSE)
    branch = lines.take(9)
    assert branch is not None
    lines.start_over([*TEXT, 4, 5])
    lines.extend(branch, 30, 200, [(30, 0.6)])
    assert lines.take_unsent() == []


def test_a_text_that_differs_before_the_base_continues_with_no_line() -> None:
    lines, _ = drafted(CLOSE)
    assert lines.take(9) is not None
    assert lines.adopt([1, 9, 3, 21]) is None
    assert lines.adopt([1, 9]) is None
    found = lines.adopt([*TEXT, 21])
    assert found is not None and found.token_ids == [*TEXT, 21]


def test_what_is_sent_is_sent_once_and_in_bounds() -> None:
    lines, _ = drafted(CLOSE)
    branch = lines.take(99)
    assert branch is not None
    for token_id in range(30, 40):
        lines.extend(branch, token_id, 200, [(token_id, 0.99)])
    [piece] = lines.take_unsent()
    assert (piece.line, piece.parent, piece.fork, piece.position) == (1, 0, 3, 3)
    assert list(piece.token_ids) == [21, *range(30, 37)]
    [piece] = lines.take_unsent()
    assert (piece.position, list(piece.token_ids)) == (11, [37, 38, 39])
    assert lines.take_unsent() == []


def test_no_more_than_so_many_are_kept() -> None:
    lines, line = drafted()
    for i in range(60):
        line.append(100)
        lines.note(line, [(100, 0.99), *((101 + j, 0.1 - 0.001 * i) for j in range(9))])
    assert lines.work_count(999) <= 128
    for _ in range(128):
        if branch := lines.take(999):
            branch.is_taken = False
            branch.is_over = True
    assert len(lines.take_unsent()) <= 63


# runner-ups


def row_of(**logits: float) -> np.ndarray:
    row = np.full(64, -30.0, np.float32)
    for name, value in logits.items():
        row[int(name[1:])] = value
    return row


def test_a_greedy_guess_knows_the_next_best_by_their_probabilities() -> None:
    guess = guesser(ToyModel(), opening(Rule.MATCH, GREEDY), 256, 0.0)
    row = row_of(_7=2.0, _9=1.0, _4=0.0)
    known = guess(row, 4, PROMPT, 2)
    assert [token_id for token_id, _ in known.chances] == [7, 9, 4]
    assert known.chances[1][1] / known.chances[0][1] == pytest.approx(math.exp(-1.0))
    assert sum(chance for _, chance in known.chances) == pytest.approx(1.0)
    plain = guess(row, 4, PROMPT)
    assert (plain.token_id, plain.confidence, plain.chances) == (7, known.confidence, ())


def test_a_race_knows_who_came_next_and_by_how_much() -> None:
    guess = guesser(ToyModel(), opening(Rule.SHARED_NOISE, WARM), 256, 0.0)
    row = row_of(_7=2.0, _9=1.9, _4=1.8)
    for position in range(50):
        line = [*PROMPT, *[5] * position]
        known, plain = guess(row, 4, line, 1), guess(row, 4, line)
        assert (known.token_id, known.confidence) == (plain.token_id, plain.confidence)
        (first, chance), (second, rest) = known.chances
        assert first == plain.token_id != second
        assert chance + rest == pytest.approx(1.0) and chance >= rest
        if plain.confidence < 255:
            margin = math.log(chance / rest)
            assert int(32 * margin) == pytest.approx(plain.confidence, abs=1)
