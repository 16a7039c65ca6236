"""Drafts that dial in: the text stays, whoever they are and whatever becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from orchestrator.joined_drafts import MOST_JOINED
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_registry_service_pb2 as registry
from outrider.v1 import draft_service_pb2 as draft_messages
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1.draft_registry_service_pb2_grpc import DraftRegistryServiceStub
from tests.support.hostile import RandomMessages
from tests.support.services import (
    DRAFT,
    PATIENCE,
    TARGET,
    Completion,
    Interruption,
    JoiningDraft,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    generate,
    request,
    running,
    toy,
    written_alone,
)
from tests.support.toy import NEVER, ToyModel

DRAFTED = messages.TOKEN_ORIGIN_DRAFTED
ID = b"process of tests"
PACE = 0.002  # of the target's decodes: leaves time to break things


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


def good_draft() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.98, eos_bias=NEVER)


def slow_draft() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.98, eos_bias=NEVER, step_seconds=0.004)


def stranger() -> ToyModel:
    return toy(seed=2, changed_texts={17: b"other"}, eos_bias=NEVER)


def long_request(**options: Any) -> messages.GenerateRequest:
    return request(**{"token_limit": 200, **options})


def assert_right(completion: Completion, asked: messages.GenerateRequest) -> None:
    assert completion.token_ids == written_alone(target(), asked)


@contextlib.asynccontextmanager
async def accepting(**options: Any) -> AsyncIterator[OrchestratorProcess]:
    """Start a target and an orchestrator that accepts drafts and has none of its own."""
    options = {"accept_drafts": True, **options}
    async with (
        running(ModelProcess(TARGET, target, pace=PACE)) as process,
        running(OrchestratorProcess(process.address, **options)) as orchestrator,
    ):
        await orchestrator.until_ready()
        yield orchestrator


async def until_joined(orchestrator: OrchestratorProcess, count: int = 1) -> None:
    def has_joined() -> bool:
        return sum(each.peer.has_joined for each in orchestrator.pool.drafts) == count

    await eventually(has_joined)


def stub_of(orchestrator: OrchestratorProcess) -> Any:
    return DraftRegistryServiceStub(orchestrator.channel)


async def joining(
    orchestrator: OrchestratorProcess, model: common.GetModelResponse, process_id: bytes = ID
) -> Any:
    """Return a Join call that has described itself."""
    call = stub_of(orchestrator).Join(timeout=PATIENCE)
    assert (await call.read()).WhichOneof("message") == "get_model"
    await call.write(registry.JoinRequest(model=model, process_id=process_id))
    return call


async def described(make_model: Any = good_draft) -> common.GetModelResponse:
    """Return how a draft describes itself."""
    async with running(ModelProcess(DRAFT, make_model)) as process:
        response: common.GetModelResponse = process.servicer.description()
        return response


@contextlib.asynccontextmanager
async def scripted(orchestrator: OrchestratorProcess) -> AsyncIterator[Any]:
    """Join by hand, with the description of an honest draft; yields the call."""
    call = await joining(orchestrator, await described())
    assert (await call.read()).WhichOneof("message") == "joined"
    await until_joined(orchestrator)
    try:
        yield call
    finally:
        call.cancel()
        await until_joined(orchestrator, 0)


async def invitation(call: Any) -> registry.SessionInvitation:
    while True:
        message = await call.read()
        if message.WhichOneof("message") == "invitation":
            found: registry.SessionInvitation = message.invitation
            return found


# --- drafting ---


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_a_draft_that_joined_drafts_and_the_text_stays(temperature: float) -> None:
    async with accepting() as orchestrator:
        before = await generate(orchestrator, request(temperature=temperature))
        assert before.origin_count(DRAFTED) == 0
        async with running(JoiningDraft(orchestrator.address, good_draft)):
            await until_joined(orchestrator)
            completion = await generate(orchestrator, request(temperature=temperature))
            assert completion.origin_count(DRAFTED) > 20
            assert completion.token_ids == before.token_ids
            assert_right(completion, request(temperature=temperature))


async def test_a_text_whose_drafters_name_no_model_is_shown_to_no_draft() -> None:
    async with accepting() as orchestrator, scripted(orchestrator) as call:
        invited = asyncio.create_task(invitation(call))
        for drafters in (["suffix", "copy"], ["eagle3"]):
            await generate(orchestrator, request(drafters=drafters))
        assert not invited.done()
        await generate(orchestrator, request())
        await asyncio.wait_for(invited, PATIENCE)


async def test_a_draft_that_joins_in_the_middle_of_a_text_drafts_the_rest_of_it() -> None:
    async with accepting() as orchestrator:
        late = JoiningDraft(orchestrator.address, good_draft)
        try:
            completion = await generate(
                orchestrator,
                long_request(token_limit=1000, prompt="a"),
                [Interruption(5, late.start)],
            )
        finally:
            await late.close()
        assert completion.origin_count(DRAFTED) > 0


async def test_status_shows_each_draft_that_joined() -> None:
    async with accepting() as orchestrator:
        assert (await orchestrator.status()).reason.startswith("no draft has joined")
        async with (
            running(JoiningDraft(orchestrator.address, good_draft)),
            running(JoiningDraft(orchestrator.address, good_draft)),
        ):
            await until_joined(orchestrator, 2)
            status = await orchestrator.status()
            assert status.speculating
            assert [(peer.role, peer.joined) for peer in status.peers] == [
                ("target", False),
                ("draft", True),
                ("draft", True),
            ]
            for peer in status.peers[1:]:
                assert peer.state == messages.PEER_STATE_READY and not peer.trusted
                assert peer.address.startswith("127.0.0.1:")
                assert peer.model.model_name
                assert peer.tokens_per_second > 0
                assert peer.round_trip_duration.ToMicroseconds() > 0
        await until_joined(orchestrator, 0)
        assert len((await orchestrator.status()).peers) == 1


async def test_generations_lease_different_drafts_and_give_them_back() -> None:
    async with (
        accepting() as orchestrator,
        running(JoiningDraft(orchestrator.address, slow_draft)),
        running(JoiningDraft(orchestrator.address, slow_draft)),
    ):
        await until_joined(orchestrator, 2)
        drafts = list(orchestrator.pool.drafts)
        both = [asyncio.create_task(generate(orchestrator, long_request())) for _ in range(2)]
        await eventually(lambda: [draft.generation_count for draft in drafts] == [1, 1])
        for completion in await asyncio.gather(*both):
            assert_right(completion, long_request())
        assert [draft.generation_count for draft in drafts] == [0, 0]


async def test_a_configured_draft_and_one_that_joined_draft_side_by_side() -> None:
    async with (
        running(ModelProcess(DRAFT, slow_draft)) as own,
        accepting(draft=own.address) as orchestrator,
        running(JoiningDraft(orchestrator.address, slow_draft)),
    ):
        await until_joined(orchestrator)
        drafts = orchestrator.pool.drafts
        both = [asyncio.create_task(generate(orchestrator, long_request())) for _ in range(2)]
        await eventually(lambda: [draft.generation_count for draft in drafts] == [1, 1])
        for completion in await asyncio.gather(*both):
            assert_right(completion, long_request())


# --- leaving and coming back ---


@pytest.mark.fault(
    "others",
    "the draft that a generation leases is killed while another one is joined",
    before="one draft was configured, and a text was written without drafts once it was lost",
    now="the generation leases the other draft at once, and the text stays",
)
async def test_another_draft_takes_over_when_the_leased_one_is_lost() -> None:
    async with accepting() as orchestrator:
        drafts = [JoiningDraft(orchestrator.address, good_draft) for _ in range(2)]
        for count, draft in enumerate(drafts, 1):
            await draft.start()
            await until_joined(orchestrator, count)

        async def kill_the_leased_one() -> None:
            leased = [draft.generation_count for draft in orchestrator.pool.drafts].index(1)
            await drafts.pop(leased).close()

        asked = long_request()
        try:
            completion = await generate(
                orchestrator, asked, [Interruption(60, kill_the_leased_one)]
            )
        finally:
            for draft in drafts:
                await draft.close()
        assert_right(completion, asked)
        assert completion.statistics.draft_fault_count >= 1
        assert completion.origins[150:].count(DRAFTED) > 20


async def test_a_text_continues_plainly_when_the_only_draft_is_lost() -> None:
    async with accepting() as orchestrator:
        only = JoiningDraft(orchestrator.address, good_draft)
        await only.start()
        await until_joined(orchestrator)
        asked = long_request()
        completion = await generate(orchestrator, asked, [Interruption(60, only.close)])
        assert_right(completion, asked)
        assert completion.origins[150:].count(DRAFTED) == 0


async def test_a_draft_joins_again_after_the_orchestrator_restarted() -> None:
    async with (
        accepting() as orchestrator,
        running(JoiningDraft(orchestrator.address, good_draft)),
    ):
        await until_joined(orchestrator)
        await orchestrator.close()
        await orchestrator.start()
        await until_joined(orchestrator)
        completion = await generate(orchestrator, request())
        assert completion.origin_count(DRAFTED) > 20
        assert_right(completion, request())


@pytest.mark.parametrize("is_broken", [False, True])
async def test_what_was_learned_of_a_draft_outlives_its_connection(is_broken: bool) -> None:
    async with accepting() as orchestrator:
        model = await described()
        call = await joining(orchestrator, model)
        await until_joined(orchestrator)
        rates = orchestrator.pool.pair.rates
        if is_broken:
            orchestrator.pool.drafts[0].note_failure("it sent nonsense")
        call.cancel()
        await until_joined(orchestrator, 0)
        again = await joining(orchestrator, model)
        await until_joined(orchestrator)
        assert orchestrator.pool.drafts[0].rates is rates
        assert bool(orchestrator.pool.drafts[0].obstacle()) is is_broken
        again.cancel()


async def test_a_draft_that_joins_again_takes_the_place_of_its_broken_connection() -> None:
    async with accepting() as orchestrator, scripted(orchestrator) as old:
        rates = orchestrator.pool.pair.rates
        new = await joining(orchestrator, await described())
        with pytest.raises(grpc.aio.AioRpcError) as end:
            while True:
                await old.read()
        assert end.value.details() == "the draft joined again"
        await until_joined(orchestrator)
        assert orchestrator.pool.drafts[0].rates is not rates  # of another process
        new.cancel()


async def test_a_drain_waits_for_no_draft() -> None:
    async with (
        accepting() as orchestrator,
        running(JoiningDraft(orchestrator.address, good_draft)),
    ):
        await until_joined(orchestrator)
        await orchestrator.orchestrator.drain(PATIENCE)
        await until_joined(orchestrator, 0)


# --- who is refused ---


async def test_a_draft_with_another_vocabulary_is_refused_with_the_first_token_that_differs() -> (
    None
):
    async with (
        running(ModelProcess(DRAFT, stranger)) as other,
        accepting(same_vocabulary=True) as orchestrator,
    ):
        call = await joining(orchestrator, other.servicer.description())
        assert (await call.read()).WhichOneof("message") == "list_vocabulary"
        for piece in other.servicer.vocabulary_pieces():
            await call.write(registry.JoinRequest(vocabulary=piece))
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call.read()
        assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "token 17 differs" in (refusal.value.details() or "")
        assert not orchestrator.pool.drafts
        assert_right(await generate(orchestrator, request()), request())
        [refused] = (await orchestrator.status()).refused_drafts
        assert refused.model_name == other.servicer.description().model_name
        assert refused.address.startswith("127.0.0.1:") and "token 17 differs" in refused.reason
        assert refused.attempt_count == 1 and refused.since_duration.ToMicroseconds() > 0


async def test_a_draft_that_breaks_the_protocol_is_shown_until_it_joins_well() -> None:
    async with accepting() as orchestrator:
        model = await described()
        nameless = common.GetModelResponse()
        nameless.CopyFrom(model)
        for attempt in (1, 2):
            call = await joining(orchestrator, nameless, process_id=b"")
            with pytest.raises(grpc.aio.AioRpcError):
                await call.read()
            [refused] = (await orchestrator.status()).refused_drafts
            assert (refused.model_name, refused.attempt_count) == ("", attempt)
            assert "process_id" in refused.reason or "session_id" in refused.reason
        async with scripted(orchestrator) as call:
            assert not (await orchestrator.status()).refused_drafts
            # What nobody asked for ends the Join.
            await call.write(registry.JoinRequest(vocabulary=common.ListVocabularyResponse()))
            await until_joined(orchestrator, 0)
            [refused] = (await orchestrator.status()).refused_drafts
            assert refused.model_name == model.model_name
            assert "nobody asked for it" in refused.reason


async def test_a_draft_is_dismissed_when_the_target_becomes_one_that_it_does_not_fit() -> None:
    async with (
        running(ModelProcess(TARGET, target)) as process,
        running(
            OrchestratorProcess(process.address, accept_drafts=True, same_vocabulary=True)
        ) as orchestrator,
    ):
        await orchestrator.until_ready()
        async with scripted(orchestrator) as call:
            await process.restart(stranger)
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                while True:
                    message = await call.read()
                    assert message.WhichOneof("message") == "get_model"
                    await call.write(registry.JoinRequest(model=await described()))
            assert "token 17 differs" in (refusal.value.details() or "")


def piece(count: int, size: int = 1) -> registry.JoinRequest:
    texts = [b"x" * size] * count
    vocabulary = common.ListVocabularyResponse(token_texts=texts, token_names=texts)
    return registry.JoinRequest(vocabulary=vocabulary)


@pytest.mark.parametrize(
    ("answers", "field"),
    [
        ([piece(1000)], "vocabulary"),
        ([piece(0)], "vocabulary"),
        ([piece(10, 400_000)] * 5, "vocabulary"),
        ([registry.JoinRequest(model=common.GetModelResponse())], "answer"),
    ],
    ids=["too many tokens", "no tokens", "too many bytes", "no vocabulary"],
)
async def test_a_vocabulary_is_taken_as_announced_or_not_at_all(
    answers: list[registry.JoinRequest], field: str
) -> None:
    async with accepting() as orchestrator:
        call = await joining(orchestrator, await described(stranger))
        assert (await call.read()).WhichOneof("message") == "list_vocabulary"
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            with contextlib.suppress(asyncio.InvalidStateError):
                for answer in answers:
                    await call.write(answer)
            await call.read()
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (refusal.value.details() or "").startswith(field)


async def test_a_long_description_is_cut_or_refused() -> None:
    async with accepting() as orchestrator:
        model = await described()
        model.chat_template = "x" * (1 << 20)
        call = await joining(orchestrator, model)
        await until_joined(orchestrator)
        assert (await orchestrator.status()).ByteSize() < 1 << 16
        call.cancel()
        model.system_info = "x" * 65536
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await (await joining(orchestrator, model)).read()
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_draft_without_a_process_id_is_refused() -> None:
    async with accepting() as orchestrator:
        call = await joining(orchestrator, await described(), process_id=b"short")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call.read()
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_where_no_drafts_are_accepted_nobody_can_join() -> None:
    async with accepting(accept_drafts=False) as orchestrator:
        call = stub_of(orchestrator).Join(timeout=PATIENCE)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call.read()
        assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_more_than_so_many_drafts_are_sent_away() -> None:
    async with accepting() as orchestrator:
        calls = [stub_of(orchestrator).Join(timeout=PATIENCE) for _ in range(MOST_JOINED)]
        for call in calls:
            await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await stub_of(orchestrator).Join(timeout=PATIENCE).read()
        assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        calls[0].cancel()

        async def has_room() -> bool:
            call = stub_of(orchestrator).Join(timeout=PATIENCE)
            try:
                await call.read()
            except grpc.aio.AioRpcError:
                return False
            call.cancel()
            return True

        await eventually(has_room)


@pytest.mark.parametrize("trust_drafts", [False, True])
async def test_a_draft_that_joined_drafts_under_rejection_only_if_it_is_trusted(
    trust_drafts: bool,
) -> None:
    async with (
        accepting(trust_drafts=trust_drafts) as orchestrator,
        running(JoiningDraft(orchestrator.address, good_draft)),
    ):
        await until_joined(orchestrator)
        asked = request(acceptance=common.ACCEPTANCE_RULE_REJECTION)
        completion = await generate(orchestrator, asked)
        assert (completion.origin_count(DRAFTED) > 0) is trust_drafts


# --- what strangers send ---


async def test_a_ticket_is_good_once_and_for_nobody_else() -> None:
    async with accepting(draft_seconds=0.1) as orchestrator, scripted(orchestrator) as call:
        generation = asyncio.create_task(generate(orchestrator, long_request()))
        ticket = (await invitation(call)).ticket
        first = stub_of(orchestrator).Attend(timeout=PATIENCE)
        await first.write(registry.AttendRequest(ticket=ticket))
        for wrong in (ticket, bytes(16), b""):
            second = stub_of(orchestrator).Attend(timeout=PATIENCE)
            await second.write(registry.AttendRequest(ticket=wrong))
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await second.read()
            assert refusal.value.code() is grpc.StatusCode.NOT_FOUND
        assert_right(await generation, long_request())


async def test_an_invitation_that_nobody_follows_is_repeated_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.joined_drafts.CALL_SECONDS", 0.05)
    async with accepting(draft_seconds=0.1) as orchestrator, scripted(orchestrator) as call:
        generation = asyncio.create_task(generate(orchestrator, long_request()))
        first = await invitation(call)
        second = await invitation(call)
        assert second.ticket != first.ticket
        assert second.open.session_id == first.open.session_id
        assert second.open.attempt == first.open.attempt + 1
        assert_right(await generation, long_request())


async def test_a_draft_that_cannot_serve_a_session_is_not_asked_again_by_it() -> None:
    async with accepting(draft_seconds=0.1) as orchestrator, scripted(orchestrator) as call:
        generation = asyncio.create_task(generate(orchestrator, long_request()))
        attending = stub_of(orchestrator).Attend(timeout=PATIENCE)
        ticket = (await invitation(call)).ticket
        await attending.write(registry.AttendRequest(ticket=ticket))
        failure = registry.AttendFailure(code=3, message="grammar: too large")
        await attending.write(registry.AttendRequest(failure=failure))
        assert_right(await generation, long_request())
        again = asyncio.create_task(invitation(call))
        assert_right(await generate(orchestrator, request()), request())
        # The next invitation is of the next generation.
        assert (await again).order.committed.position == 0


FRAME = draft_messages.DraftFrame(position=10_000, token_ids=[5] * 64)
UNORDERED = registry.AttendRequest(response=draft_messages.DraftResponse(frame=FRAME))


@pytest.mark.parametrize("sent", [UNORDERED.SerializeToString(), b"\xff\xff\xff"])
async def test_a_draft_that_sends_what_cannot_be_is_ejected(sent: bytes) -> None:
    async with accepting() as orchestrator, scripted(orchestrator) as call:
        generation = asyncio.create_task(generate(orchestrator, long_request()))
        attend = orchestrator.channel.stream_stream("/outrider.v1.DraftRegistryService/Attend")
        attending = attend(timeout=PATIENCE)
        ticket = (await invitation(call)).ticket
        await attending.write(registry.AttendRequest(ticket=ticket).SerializeToString())
        await attending.write(sent)
        await eventually(lambda: "ejected for" in orchestrator.pool.obstacle())
        [_, draft] = (await orchestrator.status()).peers
        assert draft.state == messages.PEER_STATE_REFUSED and "ejected for" in draft.detail
        assert_right(await generation, long_request())


async def test_a_description_that_nobody_asked_for_ends_the_join() -> None:
    async with accepting() as orchestrator, scripted(orchestrator) as call:
        await call.write(registry.JoinRequest(model=await described()))
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            while True:
                await call.read()
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_random_messages_change_no_text() -> None:
    drawn = RandomMessages(11)

    async def babble(call: Any, kind: Any) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for _ in range(5):
                await call.write(drawn.message(kind))
            while await call.read() is not grpc.aio.EOF:
                pass
        call.cancel()

    async with (
        accepting() as orchestrator,
        running(JoiningDraft(orchestrator.address, good_draft)),
    ):
        await until_joined(orchestrator)
        stub = stub_of(orchestrator)
        generation = asyncio.create_task(generate(orchestrator, long_request()))
        for _ in range(40):
            await babble(stub.Join(timeout=PATIENCE), registry.JoinRequest)
            await babble(stub.Attend(timeout=PATIENCE), registry.AttendRequest)
        assert_right(await generation, long_request())
        assert_right(await generate(orchestrator, request()), request())
        assert len(orchestrator.pool.drafts) == 1
