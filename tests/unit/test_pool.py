"""Which of a pool's targets and drafts a text leases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.paired_drafts import PairedDraft
from orchestrator.peers import DialledPeer, Hosted
from orchestrator.pool import Pool
from outrider.core.rates import AcceptanceRate
from outrider.core.route import MOST_PASSED_OVER
from outrider.messages import ModelReference, PeerState, Rule
from outrider.v1 import common_pb2 as common

OLD, NEW = b"o" * 32, b"n" * 32


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    pool = Pool([DialledPeer("target", f"127.0.0.{i}:9") for i in (1, 2)])
    yield pool
    await pool.stop()


def describe(pool: Pool, *models: common.GetModelResponse) -> None:
    """Let the targets describe themselves, as their watches do."""
    vocabulary: Any = None  # nothing is read here
    for target, model in zip(pool.targets, models, strict=True):
        target.peer.hosted = Hosted(model, vocabulary)
        target.peer.state = PeerState.READY
    pool._check()


def exact(identity: bytes, system_info: str = "AVX2 = 1") -> common.GetModelResponse:
    return common.GetModelResponse(
        identity=identity,
        session_count=4,
        context_token_count=256,
        numerics_profile=common.NUMERICS_PROFILE_EXACT,
        system_info=system_info,
        decode_costs=[common.DecodeCost(row_count=1, milliseconds=10)],
    )


def text_of(identity: bytes) -> Any:
    """Return the opening of a text that these weights write."""
    return SimpleNamespace(model=ModelReference(identity, "m"), salt=b"")


@pytest.mark.fault(
    "text",
    "Under `exact` a target with other kernels is in the pool",
    before="the status said that it is refused, and texts were begun and continued there",
    now="no text goes there",
)
async def test_no_text_goes_to_a_target_that_is_refused_for_its_kernels(pool: Pool) -> None:
    describe(pool, exact(OLD), exact(OLD, "AMX = 1"))
    served = pool.targets[0]
    opening = text_of(OLD)
    leases = [pool.lease_target([1, i], opening) for i in range(4)]
    assert [lease and lease.leased for lease in leases] == [served] * 4
    assert pool.likely_target([1], opening) is served.peer
    assert not pool.has_room(opening.model, served)
    assert pool.lease_target([1], opening, [served]) is None
    served.peer.state = PeerState.LOST
    assert pool.lease_target([1], opening) is None, "it waits for the one that is away"


async def test_a_text_of_weights_that_are_served_no_more_ends_where_they_are(pool: Pool) -> None:
    describe(pool, exact(OLD), exact(NEW))
    old, new = pool.targets
    opening = text_of(OLD)
    assert new.refused and pool.lease_target([1], opening)
    pool.leave(old.peer)
    assert old.refused and new.is_usable
    again = pool.lease_target([1], opening)
    assert again is not None and again.leased is old


@pytest.mark.fault(
    "others",
    "A draft is connected and answers no order, and there is another one",
    before="993 of 1,000 texts took the silent one, as nothing was known against it",
    now="after four texts without a token it is tried again once in 128 texts",
)
async def test_a_draft_of_which_nothing_comes_is_the_last_to_be_taken() -> None:
    drafts = [DialledPeer("draft", f"127.0.0.{i}:9") for i in (3, 4)]
    pool = Pool([DialledPeer("target", "127.0.0.1:9")], drafts)
    vocabulary: Any = SimpleNamespace(names=[b"x"], texts=[b"x"], digest=b"d")
    for peer in (pool.target, *drafts):
        peer.hosted, peer.state, peer.detail = Hosted(exact(OLD), vocabulary), PeerState.READY, ""
    pool._check()
    silent, good = pool.drafts
    good.rates.acceptance[Rule.MATCH] = rate = AcceptanceRate()
    for i in range(200):
        rate.note([128], int(i % 10 < 7))  # less than is expected of the other one

    def text() -> PairedDraft:
        lease = pool.lease_draft(Rule.MATCH)
        assert lease is not None
        lease.end()
        lease.leased.note_silent() if lease.leased is silent else lease.leased.note_tokens()
        return lease.leased

    taken = [text() for _ in range(1000)]
    assert taken[:5] == [silent] * 4 + [good]
    assert taken.count(silent) <= 4 + 1000 / MOST_PASSED_OVER
    silent.note_tokens()  # it is back
    assert text() is silent
    await pool.stop()
