"""Which rule a request's rows are judged by, and with which of its numbers."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.core import verdicts
from outrider.core.acceptance import (
    DraftToken,
    Verdict,
    block_verification,
    token_verification,
)
from outrider.core.draft_line import Line
from outrider.core.plan import Plan
from outrider.core.speculate import control
from outrider.core.target_costs import Pair
from outrider.core.target_progress import RoundInFlight
from outrider.core.verdicts import Decode
from outrider.distribution import Distribution, certain
from outrider.messages import (
    NO_OWN_TOKENS,
    DraftEnd,
    Form,
    Round,
    Rows,
    Rule,
    ServiceTime,
    SessionParameters,
    Span,
)
from outrider.noise import Purpose, uniform
from outrider.sampling import GREEDY
from outrider.speculation import Speculation, Verification

LENGTH = 9  # of the text before the draft
DROPPED = Span(2, [7, 7, 7])


def plan(seed: int, speculation: Speculation) -> Plan:
    """Return the plan of a generation whose text has lost three tokens."""
    opening = SessionParameters(
        session_id=bytes(16),
        attempt=1,
        rule=Rule.REJECTION,
        sampling=GREEDY,
        seed=seed,
        choice=0,
        prompt_count=8,
        token_limit=20,
        vocabulary=3,
        dropped=DROPPED,
    )
    return Plan(
        opening=opening,
        prompt=[1] * 8,
        control=control(speculation, Rule.REJECTION, Pair(), timeout=1.0),
        form=Form.DISTRIBUTIONS,
        rollback_calls=False,
        target_context=100,
    )


def random_rows(rng: np.random.Generator, count: int) -> list[Distribution]:
    ids = np.arange(3, dtype=np.int32)
    return [Distribution(ids, rng.gamma(0.7, size=3) + 1e-3) for _ in range(count)]


def asked(draft: list[int], rows: list[Distribution]) -> RoundInFlight:
    round_ = Round(1, Span(0, [1] * LENGTH), draft, Form.DISTRIBUTIONS)
    return RoundInFlight(round_, LENGTH, Line(draft, rows=rows), DraftEnd.LENGTH)


def decode_of(draft: list[int], rows: Rows) -> Decode:
    """Return the decode that verified a draft of the round's."""
    return Decode(draft, NO_OWN_TOKENS, rows, 0.0, ServiceTime())


def judged(seed: int, speculation: Speculation) -> tuple[Verdict, Verdict, Verdict]:
    """Return the verdict on a random draft, that on it as a block, and that token by token."""
    rng = np.random.default_rng(seed)
    rows, targets = random_rows(rng, 4), random_rows(rng, 5)
    draft = [row.draw(rng.random()) for row in rows]
    answer = Rows(distributions=targets)
    decode = decode_of(draft, answer)
    verdict = verdicts.judge(plan(seed, speculation), asked(draft, rows), decode, LENGTH)
    first = LENGTH + len(DROPPED.token_ids)

    def u(purpose: Purpose, i: int) -> float:
        return uniform(seed, 0, purpose, first, first + i)

    tokens = [DraftToken(i, row) for i, row in zip(draft, rows, strict=True)]
    return verdict, block_verification(tokens, targets, u), token_verification(tokens, targets, u)


def test_a_draft_is_judged_as_a_block_unless_the_request_wants_it_by_token() -> None:
    seen = set()
    for seed in range(50):
        by_default, block, token = judged(seed, Speculation())
        assert by_default == block
        by_token, block, token = judged(seed, Speculation(verification=Verification.TOKEN))
        assert by_token == token
        seen.add(block == token)
    assert seen == {True, False}


@pytest.mark.parametrize("verification", Verification)
def test_a_draft_with_another_number_of_rows_than_tokens_is_judged_by_nobody(
    verification: Verification,
) -> None:
    [p, q] = random_rows(np.random.default_rng(0), 2)
    its = plan(1, Speculation(verification=verification))
    with pytest.raises(ValueError):
        verdicts.judge(its, asked([1, 2], [q]), decode_of([1, 2], Rows(distributions=[p] * 3)), 9)
    with pytest.raises(ValueError):
        verdicts.judge(its, asked([1], [q]), decode_of([1], Rows(distributions=[p] * 3)), 9)


@pytest.mark.parametrize("verification", Verification)
def test_a_draft_is_accepted_no_further_than_a_text_can_go(verification: Verification) -> None:
    its, rows = plan(1, Speculation(verification=verification)), [certain(1)] * 3
    decode = decode_of([1, 1, 1], Rows(distributions=rows[:2]))  # nothing follows the second
    verdict = verdicts.judge(its, asked([1, 1, 1], rows), decode, LENGTH)
    assert verdicts.tokens_of(decode, verdict) == [1, 1]
    refused = verdicts.judge(its, asked([1, 2, 2], [certain(1), *[certain(2)] * 2]), decode, LENGTH)
    assert refused == Verdict(1, 1)
