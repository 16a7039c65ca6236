"""A target that writes by itself: what it is allowed, and what becomes of what it writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.completions import _deltas
from orchestrator.resuming import Repeated
from outrider.core.actions import Commit, End
from outrider.core.control import Control
from outrider.core.counts import SourceCounts
from outrider.core.generation import Generation
from outrider.core.plan import Plan
from outrider.core.rates import DraftRates, Mean
from outrider.core.speculate import control
from outrider.core.target_costs import Pair, TargetCosts
from outrider.core.text import TextAssembler
from outrider.costs import CostTable
from outrider.errors import InvalidRequest
from outrider.messages import (
    MAX_CONTINUED,
    Answer,
    FinishReason,
    Form,
    Frame,
    Order,
    Origin,
    OwnTokens,
    Round,
    Rows,
    Rule,
    ServiceTime,
    SessionParameters,
    Span,
)
from outrider.sampling import GREEDY
from outrider.speculation import Speculation

PROMPT = [1, 2, 3, 4]
END = 9


def far_draft() -> Pair:
    """Return what is known of a pair whose draft is far away: the target never waits for it."""
    costs = TargetCosts(CostTable([(1, 0.03), (16, 0.032)]), continues=True)
    return Pair(costs, DraftRates(latency=Mean(0.05), token_time=Mean(0.003)))


def generation(
    limit: int = 200,
    context: int = 1000,
    known: Pair | None = None,
    is_watched: bool = False,
) -> Generation:
    """Return a generation whose streams are open."""
    opening = SessionParameters(
        session_id=bytes(16),
        attempt=1,
        rule=Rule.MATCH,
        sampling=GREEDY,
        seed=7,
        choice=0,
        prompt_count=len(PROMPT),
        token_limit=limit,
        vocabulary=100,
        end_token_ids=frozenset({END}),
    )
    its_control: Control = control(Speculation(), Rule.MATCH, known or far_draft(), timeout=1.0)
    begun = Generation(
        Plan(
            opening=opening,
            prompt=PROMPT,
            control=its_control,
            form=Form.SAMPLED,
            rollback_calls=False,
            target_context=context,
            is_watched=is_watched,
        )
    )
    begun.target_opened(continues=True)
    return begun


def rounds(generation: Generation, now: float = 0.0) -> list[Round]:
    return [a for a in generation.next_actions(now) if isinstance(a, Round)]


def wrote(
    generation: Generation, round_: Round, position: int, *ids: int, drafted: int = 0
) -> None:
    answer = Answer(round_.number, position, drafted, Rows(sampled=list(ids)))
    generation.target_wrote(answer, now=0.1)


def committed(generation: Generation) -> list[tuple[Sequence[int], Sequence[Origin]]]:
    actions = generation.next_actions(0.2)
    return [(a.token_ids, a.origins) for a in actions if isinstance(a, Commit)]


def test_without_a_draft_the_first_round_lets_the_target_write() -> None:
    [first] = rounds(generation(limit=1000))
    assert first.continue_until == len(PROMPT) + MAX_CONTINUED


def test_an_older_target_is_asked_round_by_round() -> None:
    begun = generation()
    begun.target_lost()
    begun.target_opened(continues=False)
    [first] = rounds(begun)
    assert first.continue_count == 0


def test_several_plain_tokens_are_one_commit() -> None:
    begun = generation()
    [first] = rounds(begun)
    wrote(begun, first, 4, 5, 6, 7)
    assert committed(begun) == [([5, 6, 7], [Origin.PLAIN] * 3)]
    assert begun.counts.rounds == 3


def test_every_token_that_was_gathered_says_what_a_plain_one_costs() -> None:
    known = far_draft()
    begun = generation(known=known)
    [first] = rounds(begun)
    wrote(begun, first, 4, 5)
    before = known.costs.table.seconds(1)
    spent = ServiceTime(12 * 0.02, rows=12, sessions=12)
    begun.target_wrote(Answer(first.number, 5, 0, Rows([6] * 12), spent=spent), 0.4)
    after = known.costs.table.seconds(1)
    one = CostTable([(1, 0.03), (16, 0.032)])
    one.note(1, 0.02, [(1, 5.0)])
    assert after < one.seconds(1) < before
    assert after == pytest.approx(0.02, rel=0.2)


def test_what_was_gathered_counts_as_if_it_had_come_token_by_token() -> None:
    """Even in time, as an answer reports no times of its own."""

    def written(*parts: int) -> Generation:
        begun = generation()
        [first] = rounds(begun)
        now, position = 0.0, 4
        for count in (1, 1, 1, 1, *parts):  # the first ones are slower
            now += 0.025 if position < 8 else 0.01 * count
            answer = Answer(first.number, position, 0, Rows(sampled=[5] * count))
            begun.target_wrote(answer, now)
            begun.next_actions(now)
            position += count
        return begun

    gathered, single = written(12), written(*[1] * 12)
    assert gathered.committed == single.committed
    assert gathered.counts == single.counts and gathered.counts.rounds == 16
    rates = [each.plan.control.rate for each in (gathered, single)]
    assert 40.0 < rates[1] < 100.0  # of the plan's costs 33 would come, of the last tokens 100
    assert rates[0] == pytest.approx(rates[1], rel=1e-9)


def joined(begun: Generation) -> Answer:
    """Return two answers of a target with a draft of its own as one, which it sends when they wait.

    Of the first decode one of two draft tokens is accepted, of the second both.
    """
    [first] = rounds(begun)
    drafts = [OwnTokens([5, 8], b"\xff\xff"), OwnTokens([7, 11], b"\xff\xff"), OwnTokens()]
    samples = [5, 6, 10, 7, 11, 12, 13]
    return Answer(first.number, 4, 0, Rows(sampled=samples), drafts)


def test_each_decode_of_a_watched_text_has_its_report() -> None:
    begun = generation(is_watched=True)
    begun.target_wrote(joined(begun), now=0.1)
    commits = [a for a in begun.next_actions(0.1) if isinstance(a, Commit)]
    assert [list(each.token_ids) for each in commits] == [[5, 6], [7, 11, 12], [13]]
    reports = [each.report for each in commits]
    known = [(r.round, r.committed_count, r.draft, r.accepted_count) for r in reports if r]
    assert known == [(1, 4, [5, 8], 1), (2, 6, [7, 11], 2), (3, 9, (), 0)]


def test_what_a_head_drafted_is_told_by_its_kind() -> None:
    known = far_draft()
    known.costs.own = DraftRates(source="mtp")
    begun = generation(known=known, is_watched=True)
    begun.target_wrote(joined(begun), now=0.1)
    commits = [a for a in begun.next_actions(0.1) if isinstance(a, Commit)]
    assert [each.report.sources for each in commits if each.report] == [["mtp"] * 2] * 2 + [()]
    counted = SourceCounts(drafted=4, accepted=3, decided=4, agreed=3)
    assert begun.counts.sources == {"mtp": counted}


def test_the_drafted_round_before_tokens_that_came_with_it_has_its_report() -> None:
    begun = generation(is_watched=True)
    [first] = rounds(begun)
    wrote(begun, first, 4, 5)
    begun.next_actions(0.2)
    begun.draft_opened(1000)
    begun.next_actions(0.2)
    begun.draft_frame(Frame(5, 5, [6, 7], b"\xff\xff"), 0.3)
    [second] = rounds(begun, 0.3)
    assert list(second.draft) == [6, 7]
    wrote(begun, second, 5, 6, 7, 8, 20, 21, drafted=2)
    commits = [a for a in begun.next_actions(0.4) if isinstance(a, Commit)]
    assert [list(each.token_ids) for each in commits] == [[6, 7, 8], [20], [21]]
    reports = [each.report for each in commits]
    known = [(r.round, r.committed_count, list(r.draft), r.next_token_id) for r in reports if r]
    assert known == [(2, 5, [6, 7], 8), (3, 8, [], 20), (4, 9, [], 21)]


async def test_of_decodes_that_came_together_none_is_shown_behind_a_stop_sequence() -> None:
    begun = generation(is_watched=True)
    begun.plan = replace(begun.plan, token_texts=[b"%d " % i for i in range(100)])
    begun.target_wrote(joined(begun), now=0.1)

    class Scripted:
        async def run(self) -> AsyncIterator[Any]:
            for event in begun.next_actions(0.1):
                if isinstance(event, Commit):
                    yield event
            yield End(FinishReason.STOP_SEQUENCE)

    text = TextAssembler[Origin](["6 "])
    driver: Any = Scripted()
    deltas = [delta async for delta in _deltas(begun, driver, text, True, Repeated(()))]
    assert [list(delta.token_ids) for delta in deltas] == [[5, 6]]
    assert [delta.report.accepted_token_count for delta in deltas] == [1]
    assert begun.committed == [*PROMPT, 5, 6]


def test_a_text_that_nobody_watches_is_one_commit() -> None:
    begun = generation()
    begun.target_wrote(joined(begun), now=0.1)
    [commit] = [a for a in begun.next_actions(0.1) if isinstance(a, Commit)]
    assert list(commit.token_ids) == [5, 6, 7, 11, 12, 13]


def test_each_of_the_tokens_that_came_together_has_its_report() -> None:
    begun = generation(is_watched=True)
    [first] = rounds(begun)
    answer = Answer(first.number, 4, 0, Rows(sampled=[5, 6, 7], candidates=[(), (), [(7, 0.5)]]))
    begun.target_wrote(answer, now=0.1)
    commits = [a for a in begun.next_actions(0.1) if isinstance(a, Commit)]
    reports = [commit.report for commit in commits if commit.report]
    known = [(r.round, r.committed_count, r.next_token_id, r.target_candidates) for r in reports]
    assert known == [(1, 4, 5, [()]), (2, 5, 6, [()]), (3, 6, 7, [[(7, 0.5)]])]


def test_the_limit_may_come_in_the_middle_of_what_was_gathered() -> None:
    begun = generation(limit=2)
    [first] = rounds(begun)
    wrote(begun, first, 4, 5, 6, 7)
    assert committed(begun) == [([5, 6], [Origin.PLAIN] * 2)]
    assert begun.finished is FinishReason.TOKEN_LIMIT and begun.counts.rounds == 2


def test_credit_is_renewed_before_it_ends_and_not_for_every_token() -> None:
    begun = generation(limit=4000, context=8000)
    [asked] = rounds(begun)
    sent = 0
    for i in range(4 * MAX_CONTINUED):
        wrote(begun, asked, 4 + i, 5)
        renewed = rounds(begun)
        sent += len(renewed)
        asked = (renewed or [asked])[-1]
        assert asked.continue_until > len(begun.committed)
    assert 2 <= sent <= 4 * MAX_CONTINUED / (MAX_CONTINUED / 2)


def test_the_token_limit_and_the_context_bound_what_the_target_writes_by_itself() -> None:
    [asked] = rounds(generation(limit=5))
    assert asked.continue_until == len(PROMPT) + 5
    [asked] = rounds(generation(context=10))
    assert asked.continue_until == 11  # the last token need not be decoded


def test_what_follows_an_end_token_is_not_part_of_the_text() -> None:
    begun = generation()
    [asked] = rounds(begun)
    wrote(begun, asked, 4, 5, END, 6, 7)
    assert begun.committed == [*PROMPT, 5, END]
    assert begun.finished is FinishReason.END_OF_TEXT
    assert begun.counts.rounds == 2


def test_a_stop_sequence_takes_back_what_was_written_after_it() -> None:
    begun = generation()
    [asked] = rounds(begun)
    wrote(begun, asked, 4, 5, 6, 7, 8)
    begun.next_actions(0.2)
    begun.stop(6)
    assert begun.committed == [*PROMPT, 5, 6]
    assert begun.counts.rounds == 2
    wrote(begun, asked, 8, 5)
    assert begun.committed == [*PROMPT, 5, 6]


def test_an_answer_to_a_round_that_nobody_sent_changes_nothing() -> None:
    begun = generation()
    [asked] = rounds(begun)
    answer = Answer(asked.number + 5, 4, 0, Rows(sampled=[5]))
    begun.target_wrote(answer, now=0.1)
    assert begun.committed == PROMPT


def test_an_answer_that_skips_a_token_is_refused() -> None:
    begun = generation()
    [asked] = rounds(begun)
    with pytest.raises(InvalidRequest, match="position"):
        wrote(begun, asked, 5, 6)


def test_an_answer_with_a_draft_that_was_not_sent_is_refused() -> None:
    begun = generation()
    [asked] = rounds(begun)
    with pytest.raises(InvalidRequest, match="draft"):
        wrote(begun, asked, 4, 5, 6, drafted=1)


def test_what_is_written_once_more_is_not_committed_twice() -> None:
    begun = generation()
    [asked] = rounds(begun)
    wrote(begun, asked, 4, 5, 6, 7)
    wrote(begun, asked, 5, 6, 7, 8)
    assert begun.committed == [*PROMPT, 5, 6, 7, 8]
    wrote(begun, asked, 4, 5)
    assert begun.committed == [*PROMPT, 5, 6, 7, 8]


def test_a_target_that_writes_something_else_the_second_time_is_sent_the_text() -> None:
    begun = generation()
    [asked] = rounds(begun)
    wrote(begun, asked, 4, 5, 6, 7)
    begun.next_actions(0.2)
    wrote(begun, asked, 5, 66, 67, 68)
    assert begun.committed == [*PROMPT, 5, 6, 7]
    [again] = rounds(begun)
    assert again.prefix == Span(4, [5, 6, 7])
    wrote(begun, asked, 7, 69)  # on its way when it was asked again
    assert begun.committed == [*PROMPT, 5, 6, 7]
    wrote(begun, again, 7, 8)
    assert begun.committed == [*PROMPT, 5, 6, 7, 8]


def drafting() -> tuple[Generation, Round]:
    """Return a generation after its first token, its draft and target at work."""
    begun = generation()
    begun.draft_opened(1000)
    [asked] = rounds(begun)
    wrote(begun, asked, 4, 5)
    begun.next_actions(0.1)
    return begun, asked


def test_what_the_draft_brings_is_sent_to_a_target_that_is_writing() -> None:
    begun, _ = drafting()
    begun.draft_frame(Frame(4, 4, [5, 6, 7, 8], b"\xff\xff\xff\xff"), 0.11)
    [brought] = rounds(begun, 0.11)
    assert brought.prefix == Span(4, [5])
    assert list(brought.draft) == [6, 7, 8]
    assert brought.continue_count > 0
    # The target had written a token more when it came, and then verified the rest at once.
    wrote(begun, brought, 5, 6)
    wrote(begun, brought, 6, 7, 8, 10, drafted=2)
    assert begun.committed == [*PROMPT, 5, 6, 7, 8, 10]
    assert (begun.counts.drafted, begun.counts.accepted) == (2, 2)


def test_a_draft_that_the_text_contradicts_is_not_sent() -> None:
    begun, _ = drafting()
    begun.draft_frame(Frame(4, 4, [55, 6, 7, 8], b"\xff\xff\xff\xff"), 0.11)
    assert rounds(begun, 0.11) == []


def test_after_a_miss_the_draft_starts_over_while_the_target_writes() -> None:
    begun, asked = drafting()
    wrote(begun, asked, 5, 6)
    begun.draft_frame(Frame(4, 4, [55, 6], b"\xff\xff"), 0.11)
    wrote(begun, asked, 6, 7)
    orders = [a for a in begun.next_actions(0.12) if isinstance(a, Order)]
    assert orders and orders[-1].committed.end == 7


def test_a_round_that_failed_after_a_newer_one_was_sent_is_not_asked_again() -> None:
    begun, asked = drafting()
    begun.draft_frame(Frame(4, 4, [5, 6, 7, 8], b"\xff\xff\xff\xff"), 0.11)
    [brought] = rounds(begun, 0.11)
    begun.target_busy(asked.number)
    assert rounds(begun, 0.12) == []
    begun.target_missing(brought.number, 0)
    [again] = rounds(begun, 0.13)
    assert again.prefix == Span(0, [*PROMPT, 5])


def test_a_target_that_dies_is_sent_what_was_seen_of_its_text() -> None:
    begun = generation()
    [asked] = rounds(begun)
    wrote(begun, asked, 4, 5, 6)
    begun.target_lost()
    begun.target_opened(continues=True)
    [again] = rounds(begun)
    assert again.prefix == Span(0, [*PROMPT, 5, 6])
    assert again.continue_count > 0


def test_the_text_is_gathered_where_nothing_is_drafted() -> None:
    [asked] = rounds(generation())
    assert asked.gathers


def test_nothing_is_gathered_while_a_draft_wants_to_know() -> None:
    begun, _ = drafting()
    begun.draft_frame(Frame(4, 4, [5, 6, 7, 8], b"\xff\xff\xff\xff"), 0.11)
    [brought] = rounds(begun, 0.11)
    assert not brought.gathers


def test_the_text_is_gathered_while_a_draft_is_only_tried() -> None:
    """Its line says how good it is whenever the text is compared with it."""
    known = far_draft()
    known.rates.token_time = Mean(1.0)  # slow: nothing is wanted of it
    known.rates.retry.after = 1
    begun = generation(limit=4000, context=8000, known=known)
    begun.draft_opened(8000)
    [first] = rounds(begun)
    begun.draft_frame(Frame(4, 4, [], b"", completed=1), 0.05)  # it has read the prompt
    wrote(begun, first, 4, *[20] * (MAX_CONTINUED * 3 // 4))
    actions = begun.next_actions(now=0.1)
    [asked] = [each for each in actions if isinstance(each, Round)]
    assert any(isinstance(each, Order) for each in actions), "the draft is tried"
    assert asked.gathers
