"""What is known of a pair: before its first round, and once its models measured again."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.first_estimates import shares_cores
from orchestrator.paired_drafts import PairedDraft
from orchestrator.pool import Pool
from outrider.core.speculate import control
from outrider.messages import Rule, SessionParameters
from outrider.sampling import SamplingParameters
from outrider.speculation import Speculation
from outrider.v1 import common_pb2 as common

OPENING = SessionParameters(
    session_id=bytes(16),
    attempt=0,
    rule=Rule.MATCH,
    sampling=SamplingParameters(),
    seed=1,
    choice=0,
    prompt_count=1,
    token_limit=1,
    vocabulary=8,
)

HERE, THERE = b"this machine", b"that machine"


@pytest.mark.parametrize(
    ("target", "draft", "shared"),
    [
        ((HERE, b"0-1"), (HERE, b"0-1"), True),
        ((HERE, b"0"), (HERE, b"1"), False),
        ((HERE, b""), (HERE, b"1"), True),  # on a GPU the target knows no cores, and waits for some
        ((HERE, b""), (HERE, b""), True),
        ((HERE, b"0-1"), (THERE, b"0-1"), False),
        ((b"", b"0-1"), (b"", b"0-1"), False),
    ],
)
def test_a_busy_draft_may_slow_a_target_down_only_on_cores_that_both_use(
    target: tuple[bytes, bytes], draft: tuple[bytes, bytes], shared: bool
) -> None:
    models = [
        common.GetModelResponse(machine_digest=machine, cores_digest=cores)
        for machine, cores in (target, draft)
    ]
    assert shares_cores(*models) is shared


class Described:
    """A peer that described itself, and does nothing else."""

    role, address, ready, round_trip, hosted = "draft", "", True, 0.001, None

    def __init__(self, milliseconds: float, seconds: int = 3) -> None:
        self.model = common.GetModelResponse(
            rough_decode_costs=True,
            continues=True,
            translates=True,
            identity=bytes(32),
            session_count=4,
        )
        self.model.load_duration.FromSeconds(seconds)
        self.measure(milliseconds)

    def measure(self, milliseconds: float, is_rough: bool = True) -> None:
        """Describe other costs."""
        del self.model.decode_costs[:]
        for rows in (1, 8):
            self.model.decode_costs.add(row_count=rows, milliseconds=rows * milliseconds)
        self.model.rough_decode_costs = is_rough
        self.model.plain_costs.alone_milliseconds = milliseconds


def pair_of(target: Described, *drafts: Described) -> Pool:
    made: Any = Pool
    pair: Pool = made([target])
    for each in drafts:
        paired: Any = PairedDraft
        pair.add(paired(each, is_trusted=False))
    pair._check()
    return pair


@pytest.mark.parametrize("drafts", [0, 1])
def test_measured_costs_replace_rough_ones_and_nothing_else_that_was_learned(drafts: int) -> None:
    target = Described(20.0)
    pair = pair_of(target, *[Described(2.0)] * drafts)
    running = control(Speculation(), Rule.MATCH, pair.pair, 1.0)
    costs, rates = pair.pair.costs, pair.pair.rates
    costs.gap.note(0.004)
    running.note_line([128] * 20, agrees=False)
    target.measure(15.0, is_rough=False)
    pair._check()
    again = pair.pair
    assert again.costs is running.costs
    assert again.costs.table.seconds(1) == pytest.approx(0.015) and again.costs.table.is_known(8)
    assert again.costs.alone_share == pytest.approx(1.0) and again.costs.gap.value == 0.004
    assert not drafts or (again.rates is rates is running.rates and rates.acceptance)


@pytest.mark.parametrize("least_rows", [1, 4])
def test_the_rate_of_the_target_alone_follows_what_its_decodes_take(least_rows: int) -> None:
    """Costs that were measured beside others' work would else overstate the speed-up for good."""
    target = Described(20.0)
    del target.model.decode_costs[:]
    for rows in (least_rows, 8):
        target.model.decode_costs.add(row_count=rows, milliseconds=20.0 * rows)
    known = pair_of(target).pair
    running = control(Speculation(), Rule.MATCH, known, 1.0)
    assert running.view().target_alone_token_rate == pytest.approx(1 / 0.020)
    for _ in range(80):
        known.costs.table.note(least_rows, 0.010 * least_rows)
    assert running.view().target_alone_token_rate == pytest.approx(1 / 0.010, rel=0.01)


def test_a_draft_that_measured_again_keeps_what_was_seen_of_it() -> None:
    its = Described(9.0)
    pair = pair_of(Described(20.0), its)
    rates = pair.drafts[0].rates
    its.measure(2.0, is_rough=False)
    pair._check()
    assert rates.token_time.value == rates.loaded_token_time == pytest.approx(0.002)
    rates.token_time.note(0.003)
    its.model.known_vocabulary_keys.append(b"key")
    its.measure(2.5, is_rough=False)
    pair._check()
    assert pair.drafts[0].rates is rates
    assert rates.token_time.value == 0.003 and rates.loaded_token_time == 0.0025


def test_another_process_is_learned_anew() -> None:
    target, its = Described(20.0), Described(2.0)
    pair = pair_of(target, its)
    before = pair.pair
    pair.count_generations(3)
    target.model = Described(20.0, seconds=4).model
    pair._check()
    assert pair.pair.costs is not before.costs
    assert pair.pair.rates is before.rates, "the draft and the weights are the same"
    assert pair.standing.costs is pair.pair.costs
    assert pair.pair.costs.generation_count == 3, "those that write go on"
    its.model = Described(2.0, seconds=4).model
    now = pair.pair
    pair._check()
    assert pair.pair.costs is now.costs and pair.pair.rates is not now.rates
    now = pair.pair
    target.model.identity = bytes([7] * 32)
    pair._check()
    assert pair.pair.rates is not now.rates, "it drafts for other weights"


def test_how_good_sources_without_a_model_are_is_known_beside_every_draft() -> None:
    pair = pair_of(Described(20.0), Described(2.0), Described(3.0))
    overall = []
    beside = [each.pair_beside(pair.standing) for each in pair.drafts]
    for known in beside:
        _, acceptance = control(Speculation(), Rule.MATCH, known, 1.0).acceptance_of("suffix")
        overall.append(acceptance)
    assert overall[0] is overall[1]
    models = [known.rates.acceptance[Rule.MATCH] for known in beside]
    assert models[0] is not models[1]


@pytest.mark.parametrize("role", ["draft", "target"])
def test_a_peer_that_was_ejected_gets_nothing_and_then_one_text_that_tries_it(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule is one: whatever the role, and whatever it failed by."""
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    made: Any = Pool
    targets = [Described(20.0) for _ in range(2 if role == "target" else 1)]
    pool: Pool = made(targets)
    for _ in range(2 if role == "draft" else 0):
        paired: Any = PairedDraft
        pool.add(paired(Described(2.0), is_trusted=False))
    pool._check()
    bad, good = pool.targets if role == "target" else pool.drafts

    def lease() -> Any:
        if role == "target":
            return pool.lease_target([5], OPENING)
        return pool.lease_draft(Rule.MATCH)

    bad.note_failure("it sent what cannot be")
    assert bad.obstacle() == "ejected for 5 s: it sent what cannot be" and not good.obstacle()
    texts = [lease() for _ in range(3)]
    assert [each.leased for each in texts] == [good] * 3
    clock[0] += 5.0
    texts += [lease() for _ in range(2)]
    assert [each.leased for each in texts[3:]] == [bad, good]
    texts[3].end()
    bad.note_failure("it sent what cannot be")
    assert bad.obstacle().startswith("ejected for 10 s")
    clock[0] += 10.0
    texts.append(lease())
    assert texts[-1].leased is bad
    bad.health.note_success()
    texts += [lease() for _ in range(2)]
    assert [each.leased for each in texts[6:]] == [bad, bad]
