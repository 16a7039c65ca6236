"""The client's values against the contract: nothing is lost, everything odd is refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from outrider.client import (
    CallFailed,
    Candidate,
    Delta,
    Detail,
    DraftEnd,
    EngineTime,
    Finished,
    FinishReason,
    Origin,
    OutriderClient,
    PeerState,
    Position,
    Request,
    RollbackMode,
    RoundReport,
    Started,
    Statistics,
    Token,
)
from outrider.errors import EngineBusy, InvalidRequest
from outrider.messages import Form, Rule
from outrider.rpc.statuses import to_status
from outrider.speculation import Policy, Verification
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.wire_requests import write_request
from outrider.wire_responses import read_event


def test_what_is_not_chosen_is_left_to_the_orchestrator():
    request = write_request(Request("x"))
    assert request.prompt_text == "x" and request.token_limit == 128
    assert not request.HasField("seed") and not request.round_detail
    assert request.speculative == messages.SpeculativeOptions()


def test_what_is_chosen_is_sent():
    options = Request(
        [1, 2],
        token_limit=-1,
        seed=-5,
        stop_sequences=("a", "b"),
        enabled=False,
        n_max=0,
        policy=Policy.CLASSIC,
        acceptance=Rule.REJECTION,
        verification=Verification.TOKEN,
        row_form=Form.LOGITS,
        rollback=RollbackMode.RPC,
        detail=Detail.CANDIDATES,
    )
    request = write_request(options)
    assert list(request.prompt_tokens.token_ids) == [1, 2]
    assert (request.token_limit, request.seed) == (-1, -5)
    assert list(request.stop_sequences) == ["a", "b"]
    assert request.speculative == messages.SpeculativeOptions(
        enabled=False,
        n_max=0,
        policy=messages.DRAFT_POLICY_CLASSIC,
        acceptance=common.ACCEPTANCE_RULE_REJECTION,
        verification=messages.VERIFICATION_TOKEN,
        row_form=common.ROW_FORM_LOGITS,
        rollback=messages.ROLLBACK_MODE_RPC,
    )
    assert request.speculative.HasField("n_max")
    assert request.round_detail == messages.ROUND_DETAIL_CANDIDATES


@pytest.mark.parametrize(
    "wrong",
    [
        {"token_limit": -2},
        {"token_limit": 2**31},
        {"seed": 2**63},
        {"n_max": -1},
        {"n_max": 65},
        {"n_min": 3, "n_max": 2},
        {"p_min": 1.5},
        {"stop_sequences": ("\udc80",)},
    ],
)
def test_what_protobuf_could_not_carry_is_refused(wrong: dict[str, Any]):
    with pytest.raises(InvalidRequest):
        Request("x", **wrong)


@pytest.mark.parametrize("prompt", ["\udc80", [-1], [2**31]])
def test_a_prompt_that_cannot_be_sent_is_refused(prompt: str | list[int]):
    with pytest.raises(InvalidRequest):
        write_request(Request(prompt))


def test_our_names_are_those_of_the_contract():
    pairs = (
        (Origin, messages.TokenOrigin, "TOKEN_ORIGIN_"),
        (FinishReason, messages.FinishReason, "FINISH_REASON_"),
        (PeerState, messages.PeerState, "PEER_STATE_"),
        (DraftEnd, messages.DraftEnd, "DRAFT_END_"),
    )
    for ours, theirs, prefix in pairs:
        assert [prefix + member.name for member in ours] == theirs.keys()


def test_statistics_have_every_field_of_the_contract():
    names = [
        name.replace("_duration", "_seconds")
        for name in messages.GenerationStatistics.DESCRIPTOR.fields_by_name
    ]
    assert [field.name for field in fields(Statistics)] == names
    assert [field.name for field in fields(EngineTime)] == [
        name.replace("_duration", "_seconds")
        for name in messages.EngineTime.DESCRIPTOR.fields_by_name
    ]


def test_events_are_read():
    response = messages.GenerateResponse()
    response.started.seed = 3
    response.started.prompt_token_ids.append(5)
    response.started.acceptance_rule = common.ACCEPTANCE_RULE_MATCH
    assert read_event(response) == Started((5,), 3, Rule.MATCH)


def test_origins_of_a_later_version_read_as_unspecified():
    response = messages.GenerateResponse()
    response.delta.token_ids.append(5)
    response.delta.origins.append(99)  # type: ignore[arg-type]
    assert read_event(response) == Delta((5,), (Origin.UNSPECIFIED,), ())


def test_a_report_of_a_round_is_read():
    response = messages.GenerateResponse()
    response.delta.token_ids.extend([5, 6])
    told = response.delta.report
    told.round, told.committed_token_count, told.accepted_token_count = 3, 12, 1
    told.draft.add(token_id=5, text=b"\xc3")
    told.target.token_id, told.target.text = 6, b"\xa9"
    told.draft_end = messages.DRAFT_END_SHORT
    told.positions.add().target.add(token=messages.Token(token_id=5, text=b"x"), probability=0.5)
    event = read_event(response)
    assert isinstance(event, Delta)
    assert event.report == RoundReport(
        round=3,
        committed_token_count=12,
        draft=(Token(5, b"\xc3"),),
        accepted_token_count=1,
        target=Token(6, b"\xa9"),
        draft_end=DraftEnd.SHORT,
        positions=(Position((Candidate(Token(5, b"x"), 0.5),), ()),),
    )


def test_a_delta_without_a_report_has_none():
    response = messages.GenerateResponse()
    response.delta.token_ids.append(5)
    event = read_event(response)
    assert isinstance(event, Delta) and event.report is None


def test_an_end_of_a_later_version_reads_as_unspecified():
    response = messages.GenerateResponse()
    response.delta.report.draft_end = 99  # type: ignore[assignment]
    event = read_event(response)
    assert isinstance(event, Delta) and event.report is not None
    assert event.report.draft_end is DraftEnd.UNSPECIFIED


def test_durations_are_read_as_seconds():
    response = messages.GenerateResponse()
    statistics = response.finished.statistics
    statistics.prompt_duration.FromMilliseconds(1500)
    statistics.target_time.decode_duration.FromMicroseconds(250)
    statistics.target_time.prompt_duration.FromMicroseconds(125)
    statistics.verify_network_duration.FromMilliseconds(2)
    statistics.draft_network_duration.FromMilliseconds(1)
    statistics.plain_round_duration.FromNanoseconds(7_000_001)
    statistics.accepted_by_position.extend([2, 1])
    event = read_event(response)
    assert isinstance(event, Finished)
    assert event.reason is FinishReason.UNSPECIFIED
    assert event.statistics.prompt_seconds == 1.5
    assert event.statistics.target_time == EngineTime(
        decode_seconds=0.00025, prompt_seconds=0.000125
    )
    assert event.statistics.network_seconds == 0.003
    assert event.statistics.plain_round_seconds == 0.007000001
    assert event.statistics.accepted_by_position == (2, 1)


async def test_an_error_keeps_its_reason_and_its_words():
    rich = to_status(EngineBusy("64 generations are in flight", 1.0))
    trailing = Metadata(("grpc-status-details-bin", rich.SerializeToString()))
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    failed = await failure(AioRpcError(code, Metadata(), trailing, rich.message))
    assert (failed.reason, failed.status) == ("ENGINE_BUSY", "RESOURCE_EXHAUSTED")
    assert str(failed) == "64 generations are in flight"
    assert failed.metadata == {"retrySeconds": "1.0"}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (grpc.StatusCode.UNAVAILABLE, "no orchestrator answers at 127.0.0.1:9"),
        (grpc.StatusCode.UNIMPLEMENTED, "what answers at 127.0.0.1:9 is not an orchestrator"),
        (grpc.StatusCode.INTERNAL, "INTERNAL: oh"),
    ],
)
async def test_an_error_of_grpc_itself_is_one_plain_line(code: grpc.StatusCode, words: str):
    failed = await failure(AioRpcError(code, Metadata(), Metadata(), "oh"))
    assert (failed.reason, str(failed)) == (code.name, words)


async def failure(error: AioRpcError) -> CallFailed:
    async with OutriderClient("127.0.0.1:9") as client:
        return client._failure(error)
