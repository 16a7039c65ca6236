"""What an orchestrator does when a target drafts with another head from now on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from orchestrator.peers import DialledPeer, Hosted
from orchestrator.targets import PooledTarget
from outrider.core.rates import AcceptanceRate
from outrider.costs import CostTable
from outrider.messages import Rule
from outrider.v1 import common_pb2 as common


def model(milliseconds: float, kind: int = common.HEAD_KIND_EAGLE3) -> common.GetModelResponse:
    response = common.GetModelResponse(model_name="m", identity=bytes(32), continues=True)
    response.decode_costs.add(row_count=1, milliseconds=20.0)
    own = common.OwnDraft(model_name="head", head=cast(Any, kind), token_milliseconds=milliseconds)
    response.own_draft.CopyFrom(own)
    return response


def described(response: common.GetModelResponse) -> tuple[PooledTarget, Any]:
    """Return a target that has described itself, and what stands for the peer."""
    peer: Any = SimpleNamespace(model=response, round_trip=0.001)
    target = PooledTarget(cast(DialledPeer, peer))
    target.note_described([])
    return target, peer


def test_what_was_learned_of_the_head_before_is_forgotten_and_nothing_else() -> None:
    target, peer = described(model(1.0))
    costs, before = target.costs, target.costs.own
    costs.table = learned = CostTable([(1, 0.5)])
    own, suffix = (Rule.MATCH, "eagle3"), (Rule.MATCH, "suffix")
    costs.sources |= {own: AcceptanceRate(), suffix: AcceptanceRate()}
    target.note_described([])
    assert costs.own is before and own in costs.sources
    peer.model = model(2.0)
    target.note_described([])
    assert target.costs is costs and costs.table is learned
    assert costs.own is not None and costs.own is not before
    assert costs.own.token_time.value == 0.002
    assert own not in costs.sources and suffix in costs.sources


def test_a_head_that_comes_later_is_used() -> None:
    bare = model(1.0)
    bare.ClearField("own_draft")
    target, peer = described(bare)
    assert target.costs.own is None
    peer.model = model(1.0, common.HEAD_KIND_DFLASH)
    target.note_described([])
    assert target.costs.own is not None and target.costs.own.source == "dflash"


async def test_another_head_is_worth_a_note() -> None:
    peer = DialledPeer("target", "127.0.0.1:1")
    peer.hosted = Hosted(model(1.0), cast(Any, None))
    busy = model(1.0)
    busy.activity.decode_count = 5
    assert not peer.refresh(busy)
    assert peer.refresh(model(2.0))
    await peer.close()
