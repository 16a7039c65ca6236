"""What a draft proposes without its model: when, how sure, and to whom it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from draft_service.local_sources import (
    INSTEAD,
    SOURCES,
    LocalSources,
    acceptances,
    as_confidence,
    read_names,
)
from outrider.errors import InvalidConfig
from outrider.messages import Rule, SessionParameters
from outrider.sampling import GREEDY

SESSION = SessionParameters(
    session_id=bytes(16),
    attempt=1,
    rule=Rule.MATCH,
    sampling=GREEDY,
    seed=5,
    choice=0,
    prompt_count=4,
    token_limit=100,
    vocabulary=64,
)
WORDS = [12, 40, 7, 33, 21, 9, 50, 18]


def sources(least: float = 0.0, **changes: Any) -> LocalSources:
    return LocalSources(replace(SESSION, **changes), acceptances(["suffix"]), least)


def proposed(local: LocalSources, text: list[int], count: int = 4) -> list[int]:
    local.follow(text, len(text))
    while local.has_unread:
        local.read()
    return [guess.token_id for guess in local.propose(count)]


# names


def test_names_are_a_list_and_lookup_means_all_of_them() -> None:
    assert read_names("") == read_names("model") == ()
    assert read_names("suffix") == read_names("model,suffix,,suffix") == ("suffix",)
    assert read_names("lookup") == read_names("suffix,lookup") == tuple(SOURCES)


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InvalidConfig, match=r"drafters: must be of lookup, suffix.*, not 'sufix'"):
        read_names("suffix,sufix")


# proposing


def test_what_followed_before_is_proposed() -> None:
    assert proposed(sources(), [*WORDS, *WORDS[:3]]) == WORDS[3:7]
    assert proposed(sources(), [*WORDS, *WORDS[:3]], 2) == WORDS[3:5]


def test_without_sources_nothing_is_proposed() -> None:
    local = LocalSources(SESSION, {})
    assert proposed(local, [*WORDS, *WORDS[:3]]) == []


def test_where_a_model_would_draft_a_short_match_is_not_enough() -> None:
    assert proposed(sources(INSTEAD), [*WORDS, *WORDS[:3]]) == []
    assert proposed(sources(INSTEAD), [*WORDS, *WORDS[:4]]) == WORDS[4:]


def test_what_the_session_would_not_want_of_a_model_is_not_proposed() -> None:
    text = [*WORDS, *WORDS[:4]]
    assert proposed(sources(min_probability=0.6), text) == WORDS[4:]
    assert proposed(sources(min_probability=0.99), text) == []
    assert proposed(sources(min_ratio=1.5), text) == WORDS[4:]
    assert proposed(sources(min_ratio=20.0), text) == []
    assert proposed(sources(min_ratio=float("inf")), text) == []


def test_ids_that_the_target_does_not_have_end_a_proposal() -> None:
    assert proposed(sources(vocabulary=50), [*WORDS, *WORDS[:4]]) == [21, 9]


def test_a_text_that_does_not_go_on_with_what_was_read_is_read_anew() -> None:
    local = sources()
    proposed(local, [*WORDS, *WORDS[:3]])
    assert proposed(local, [*WORDS[:5], 3, 12, 40], 2) == [7, 33]
    assert proposed(local, WORDS[:3]) == [], "a shorter one is another one, too"


def test_nothing_is_proposed_of_a_text_that_is_partly_read() -> None:
    local = sources()
    local.follow([*WORDS, *WORDS], 16)
    local.read(12)
    assert local.has_unread and local.propose(4) == []
    local.read(12)
    assert not local.has_unread and local.propose(4)


def test_it_goes_on_behind_tokens_that_are_not_committed() -> None:
    local = sources()
    proposed(local, [*WORDS, *WORDS[:3]])
    assert [guess.token_id for guess in local.propose(2, [33, 21])] == [9, 50]


def test_of_several_sources_the_one_whose_tokens_are_likely_to_stand_is_taken() -> None:
    known = acceptances(SOURCES)
    local = LocalSources(SESSION, known)
    text = [*WORDS, *WORDS[:3]]
    assert proposed(local, text) == WORDS[3:7]
    for _ in range(50):
        known["suffix"].note([191, 204, 212], 0)
    assert proposed(local, text)[:1] == WORDS[3:4], "the n-grams say so, too"
    for _ in range(50):
        known["ngram"].note([170], 0)
    assert all(guess.confidence < 60 for guess in local.propose(1))


# what is said of a token


def test_behind_an_edit_a_draft_goes_on_with_what_is_copied() -> None:
    file = [5 * i % 61 for i in range(40)]  # no token twice
    text = [*file, *file[:20], 62]  # in place of the next one
    without = LocalSources(SESSION, acceptances(["suffix", "ngram"]))
    assert proposed(without, text) == []
    local = LocalSources(SESSION, acceptances(SOURCES))
    assert proposed(local, text) == file[21:25]


def test_a_row_is_the_token_alone_and_only_the_rejection_rule_has_one() -> None:
    for rule in Rule:
        local = sources(rule=rule)
        proposed(local, [*WORDS, *WORDS[:3]])
        [guess] = local.propose(1)
        if rule is Rule.REJECTION:
            assert guess.row is not None and guess.row.token_ids.tolist() == [33]
        else:
            assert guess.row is None


def test_a_session_that_asks_for_candidates_is_told_the_token_and_its_chance() -> None:
    local = sources(candidate_count=3)
    proposed(local, [*WORDS, *WORDS[:3]])
    [guess] = local.propose(1)
    [(token_id, chance)] = guess.candidates
    assert token_id == 33 and 255 * chance == pytest.approx(guess.confidence, abs=1)
    assert not sources().propose(1)


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.5, 0.8, 0.95, 0.999, 1.0])
def test_a_confidence_is_the_chance_and_under_shared_noise_its_odds(chance: float) -> None:
    assert as_confidence(chance, Rule.MATCH) == int(255 * chance)
    assert 0 <= as_confidence(chance, Rule.SHARED_NOISE) <= 255
    assert as_confidence(0.8, Rule.SHARED_NOISE) == 44  # ln 4 in 1/32
    assert as_confidence(chance / 2, Rule.SHARED_NOISE) <= as_confidence(chance, Rule.SHARED_NOISE)


# learning


def test_tokens_are_scored_whether_they_were_used_or_not() -> None:
    known = acceptances(["suffix"])
    local = LocalSources(SESSION, known, INSTEAD)
    before = known["suffix"].chance(170)
    text = [*WORDS, *WORDS[:2]]
    for new in (50, 60, 55, 59):  # never what followed these two before
        assert proposed(local, text) == []
        text += [new, *WORDS[:2]]
    assert known["suffix"].chance(170) < before


def test_sources_that_are_wrong_are_heard_no_more_until_they_are_right() -> None:
    known = acceptances(["suffix"])
    local = LocalSources(SESSION, known, INSTEAD)
    text = [*WORDS, *WORDS[:4]]
    assert proposed(local, text)
    for _ in range(20):
        known["suffix"].note([204], 0)
    assert proposed(LocalSources(SESSION, known, INSTEAD), text) == []
    for _ in range(60):
        known["suffix"].note([204], 1)
    assert proposed(LocalSources(SESSION, known, INSTEAD), text)
