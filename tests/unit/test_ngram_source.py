"""N-grams as a source: what the caches draft, fed part by part, with confidences."""

from __future__ import annotations

import random

import pytest

from outrider.drafters.ngram_cache import NgramCache, NgramDrafter, pack
from outrider.drafters.ngram_source import NgramSource
from outrider.drafters.source import Scored
from tests.support.operations import lines_run
from tests.support.repeating import counted, drafted, repeating_tokens


def cache_of(text: list[int], sizes: tuple[int, ...] = (1, 2, 3, 4)) -> NgramCache:
    cache = NgramCache()
    cache.update(text, len(text), sizes)
    return cache


def content(cache: NgramCache) -> dict[bytes, dict[int, int]]:
    return {ngram: dict(counts) for ngram, counts in cache.items()}


def test_it_proposes_what_the_caches_draft_however_the_text_comes_in_parts() -> None:
    proposed_count = 0
    for seed in range(20):
        pick = random.Random(seed)
        text, past, large = (repeating_tokens(150, 3 * seed + i, 12) for i in range(3))
        past, large = past + text[:40], large + text[20:60]
        dynamic, static = cache_of(past), cache_of(large, (2,))
        source, drafter, end = NgramSource(dynamic, static), NgramDrafter(dynamic, static), 0
        while end < len(text):
            step = text[end : end + pick.randrange(8)]
            source.append(step)
            drafter.extend(step)
            end += len(step)
            after = text[end : end + pick.randrange(3)]
            proposal = source.propose(8, after)
            assert proposal.token_ids == [guess.token_id for guess in drafter.draft(8, after)]
            history = text[:end]
            assert proposal.token_ids == drafted(
                [*history, *after], 8, counted(history), counted(past), counted(large, (2,))
            )
            assert len(proposal.confidences) == len(proposal.token_ids)
            assert source.propose(8, after) == proposal, "asking changes nothing"
            proposed_count += len(proposal.token_ids)
    assert proposed_count > 700


def test_what_followed_across_two_appends_counts() -> None:
    """llama-server feeds its caches the new tokens alone, and knows nothing here."""
    source = NgramSource()
    for token_id in [1, 2, 3, 4, 5, 6, 1, 2, 3]:
        source.append([token_id])
    assert source.propose(3).token_ids == [4, 5, 6]


@pytest.mark.parametrize(
    ("followed", "confidence"),
    [([9], 255 * 1 / 1.5), ([9, 9], 255 * 2 / 2.5), ([9, 8, 9], 255 * 2 / 3.5)],
)
def test_it_is_as_sure_as_its_counts_are_many_and_agree(
    followed: list[int], confidence: float
) -> None:
    text = [each for i, token in enumerate(followed) for each in (10 + i, 5, 6, 7, token)]
    text += [20, 5, 6, 7]
    source = NgramSource()
    source.append(text)
    proposal = source.propose(1)
    assert proposal.token_ids == [9]
    assert proposal.confidences == bytes([int(confidence)])


def test_shared_caches_are_only_read() -> None:
    text = repeating_tokens(300, 1)
    dynamic, static = cache_of(text), cache_of(text, (2,))
    before = content(dynamic), content(static)
    source = NgramSource(dynamic, static)
    for end in range(0, 300, 10):
        source.append(text[end : end + 10])
        source.propose(16)
    assert (content(dynamic), content(static)) == before


def test_what_a_shared_cache_learns_meanwhile_is_proposed() -> None:
    dynamic = NgramCache()
    source = NgramSource(dynamic)
    source.append([1, 2, 3])
    assert source.propose(2).token_ids == []
    dynamic.update([1, 2, 3, 4] * 3, 12)
    assert source.propose(2).token_ids == [4, 1]


def test_every_proposal_can_be_scored() -> None:
    scored = Scored(NgramSource())
    scored.append([1, 2, 3, 4, 1, 2, 3])
    assert scored.propose(2).token_ids == [4, 1]
    decided = scored.append([4, 9])
    assert (len(decided.confidences), decided.accepted) == (2, 1)


HOSTILE = {
    "one token": [7] * 2000,
    "a period": [1, 2, 3, 4, 5] * 400,
    "all new": list(range(2000)),
    "a random text of two tokens": random.Random(1).choices([0, 1], k=2000),
    "new behind one": [i for n in range(1000) for i in (0, n + 1)],
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_token_costs_the_same_at_any_length(text: list[int]) -> None:
    dynamic, static = cache_of(text), cache_of(text, (2,))
    source = NgramSource(dynamic, static)
    first = lines_run(lambda: source.append(text[:1000]))
    second = lines_run(lambda: source.append(text[1000:]))
    assert second < 1.2 * first + 1000
    assert first + second < 100 * len(text)
    assert lines_run(lambda: source.propose(16)) < 16 * 200
    assert lines_run(lambda: source.propose(16, text)) < 16 * 200 + 4 * len(text)


def test_thousands_of_followers_are_not_looked_at() -> None:
    """Of none that followed often enough; however many the large text knows there, too."""
    static = NgramCache()
    static.put(pack([3, 4]), dict.fromkeys(range(10, 5000), 1))
    source = NgramSource(static=static)
    source.append([token for i in range(10, 3000) for token in (3, 4, i)] + [3, 4])
    assert lines_run(lambda: source.propose(16)) < 200


def test_a_bounded_text_never_holds_more() -> None:
    source = NgramSource(most_pairs=500)
    source.append(list(range(3000)))
    source.append([2998, 2999, 1, 2998, 2999, 1, 2998, 2999])
    assert source.propose(1).token_ids == [1]
