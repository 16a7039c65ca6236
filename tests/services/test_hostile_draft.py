"""A draft that breaks the protocol, or nothing but keeps to it: the text and its deadline stand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest

from draft_service.servicer import DraftServicer
from orchestrator.driver import Driver
from outrider.core.generation import Generation
from outrider.core.health import Health
from outrider.descriptions import check_model
from outrider.errors import InvalidRequest
from outrider.messages import PeerState
from outrider.speculation import Speculation
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as draft
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.wire_requests import read_request
from tests.support.hostile import Vitals, hostile_process
from tests.support.services import (
    DRAFT,
    PATIENCE,
    TARGET,
    Completion,
    JoiningDraft,
    ModelProcess,
    OrchestratorProcess,
    Role,
    eventually,
    generate,
    request,
    running,
    toy,
    written_alone,
)
from tests.support.thorough import THOROUGH
from tests.support.toy import NEVER, ToyModel

LENGTH = 60
PACE = 0.002
RANDOM_SECONDS = 600.0 if THOROUGH else 8.0
LEAST_FAULTS = 2


def target() -> ToyModel:
    return toy(keeps_decodes=False, seed=1, eos_bias=NEVER)


def role_of(servicer: type[DraftServicer]) -> Role:
    make = partial(servicer, alias="", support=64, tail=0.0)
    return Role("Draft", make, DRAFT.register, DRAFT.stub)


@asynccontextmanager
async def beside(
    servicer: type[DraftServicer], make_target: Callable[[], ToyModel] = target, **options: Any
) -> AsyncIterator[OrchestratorProcess]:
    """Run an orchestrator whose draft has this servicer."""
    draft_process = ModelProcess(role_of(servicer), partial(toy, seed=2, like=1, eos_bias=NEVER))
    async with (
        running(draft_process),
        over(draft_process.address, make_target, **options) as orchestrator,
    ):
        yield orchestrator


@asynccontextmanager
async def over(
    draft_address: str, make_target: Callable[[], ToyModel] = target, **options: Any
) -> AsyncIterator[OrchestratorProcess]:
    """Run an orchestrator and a target beside a draft that runs already."""
    chosen = {"speculation": Speculation(), "draft_seconds": 0.5, **options}
    async with (
        running(ModelProcess(TARGET, make_target, pace=PACE)) as service,
        running(OrchestratorProcess(service.address, draft_address, **chosen)) as orchestrator,
    ):
        await eventually(lambda: orchestrator.pool.target.ready)
        yield orchestrator


async def first_order(requests: AsyncIterator[Any]) -> Any:
    async for each in requests:
        if each.WhichOneof("request") == "order":
            return each.order
    return None


class ReadsNothing(DraftServicer):
    """Says after every order that it holds nothing, and reads no more of them."""

    async def Draft(self, request_iterator: Any, context: Any) -> None:
        for number in range(1, 10_000):
            response = draft.DraftResponse(completed_order=number)
            response.missing.held_token_count = 0
            await context.write(response)
            await asyncio.sleep(0.002)


@pytest.mark.fault(
    "hang",
    "A draft answers pings and reads nothing of a long text",
    before="every write to it was awaited, and the request lasted past every deadline",
    now="what is sent waits in an outbox of the draft's own, and the text continues without it",
)
async def test_a_draft_that_reads_nothing_holds_up_nobody() -> None:
    def large() -> ToyModel:
        return ToyModel(
            vocabulary_size=400, context=60_000, order=2, batch_rows=512, eos_bias=NEVER
        )

    asked = request(
        prompt_tokens=[200 + i % 190 for i in range(40_000)], token_limit=50, temperature=0.0
    )
    async with beside(ReadsNothing, large, request_seconds=60.0) as orchestrator:
        completion = await generate(orchestrator, asked, timeout=60.0)
    assert len(completion.token_ids) == 50


class Floods(DraftServicer):
    """Answers the first order with frames of half a million ids, without end."""

    async def Draft(self, request_iterator: Any, context: Any) -> None:
        order = await first_order(request_iterator)
        end = order.committed.position + len(order.committed.token_ids)
        response = draft.DraftResponse()
        response.frame.base = response.frame.position = end
        response.frame.token_ids.extend([5] * 500_000)
        while True:
            await context.write(response)


class Repeats(DraftServicer):
    """Answers the first order with small frames that nobody asked for, without end."""

    async def Draft(self, request_iterator: Any, context: Any) -> None:
        order = await first_order(request_iterator)
        end = order.committed.position + len(order.committed.token_ids)
        response = draft.DraftResponse()
        response.frame.base = response.frame.position = end
        while True:
            await context.write(response)


@pytest.mark.fault(
    "hang",
    "A draft sends frames that nobody ordered, of millions of ids or without end",
    before="hundreds of megabytes, and an event loop that stood still for seconds",
    now="what goes beyond the orders ends the stream, and the draft is ejected for a while",
)
@pytest.mark.parametrize("servicer", [Floods, Repeats])
async def test_a_flood_of_frames_is_no_more_than_a_lost_draft(servicer: Any) -> None:
    asked = request(token_limit=LENGTH)
    async with beside(servicer) as orchestrator, Vitals() as vitals:
        completion = await generate(orchestrator, asked)
        assert "ejected for" in orchestrator.pool.obstacle()
    assert completion.token_ids == written_alone(target(), asked)
    assert vitals.growth < 100e6
    assert vitals.longest_block < 0.2


class ComesOut(DraftServicer):
    """Is quiet until it is told to send what nobody ordered, some times in a row."""

    may_send: asyncio.Event

    async def Draft(self, request_iterator: Any, context: Any) -> None:
        await first_order(request_iterator)
        await self.may_send.wait()
        response = draft.DraftResponse()
        response.frame.position = 100_000
        response.frame.token_ids.append(5)
        for _ in range(8):
            await context.write(response)
        await asyncio.sleep(30.0)


@pytest.mark.fault(
    "others",
    "A draft sends what nobody ordered several times before anyone looks",
    before="the second message ended the text, or sent away the draft that had taken its place",
    now="what a stream brought that is over is for nobody",
)
async def test_a_draft_answers_for_its_own_messages_alone() -> None:
    """They wait while nobody takes the text, as behind a client that does not read."""
    ComesOut.may_send = asyncio.Event()
    asked = request(token_limit=LENGTH)
    async with beside(ComesOut, accept_drafts=True) as orchestrator:
        await eventually(lambda: not orchestrator.pool.obstacle())
        own, planner = orchestrator.orchestrator, orchestrator.orchestrator._completions.planner
        deadline = time.monotonic() + PATIENCE
        plan = await planner.plan(read_request(asked), own.config.speculation, deadline)
        generation = Generation(plan)
        good = partial(toy, seed=2, like=1, agreement=0.98, eos_bias=NEVER)
        async with running(JoiningDraft(orchestrator.address, good)):
            joined = False
            async for _ in Driver(generation, orchestrator.pool, deadline).run():
                if not joined:
                    joined = True
                    await eventually(lambda: len(orchestrator.pool.drafts) == 2)
                    ComesOut.may_send.set()
                    await asyncio.sleep(0.5)
            assert [each.health.ejections for each in orchestrator.pool.drafts] == [1, 0]
    assert generation.committed[len(plan.prompt) :] == written_alone(target(), asked)


class CountsSteps(DraftServicer):
    """Drafts honestly, and says that each frame took so many steps."""

    steps = 0

    async def Draft(self, request_iterator: Any, context: Any) -> None:
        await super().Draft(request_iterator, Counting(context, self.steps))


class Counting:
    """The context of a stream on which each message says that it took so many steps."""

    def __init__(self, context: Any, steps: int) -> None:
        self._context, self._steps = context, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, response: draft.DraftResponse) -> None:
        response.service_time.step_count = self._steps
        await self._context.write(response)


@pytest.mark.fault(
    "crash",
    "A draft says that its tokens took two thousand million steps, or less than none",
    before="the statistics could not hold their sum, nor `/metrics` count it: the text ended",
    now="a service time that cannot be ends the stream, and the draft is ejected for a while",
)
@pytest.mark.parametrize("steps", [2**31 - 1, -1000])
async def test_what_a_draft_says_of_its_time_ends_no_text(steps: int) -> None:
    servicer = type("Servicer", (CountsSteps,), {"steps": steps})
    asked = request(token_limit=LENGTH)
    async with beside(servicer) as orchestrator:
        completion = await generate(orchestrator, asked)
        assert "ejected for" in orchestrator.pool.obstacle()
    assert completion.token_ids == written_alone(target(), asked)


class NeverHolds(DraftServicer):
    """Answers every order that it holds nothing, and counts what it is sent."""

    sent = 0

    async def Draft(self, request_iterator: Any, context: Any) -> None:
        async for each in request_iterator:
            NeverHolds.sent += len(each.order.committed.token_ids)
            response = draft.DraftResponse(completed_order=each.order.order)
            response.missing.held_token_count = 0
            await context.write(response)


@pytest.mark.fault(
    "hang",
    "A draft answers Missing again and again",
    before="it was sent the whole text each time",
    now="after sixteen times in a row it is ejected",
)
async def test_a_draft_that_never_holds_the_text_is_not_sent_it_for_ever() -> None:
    asked = request(token_limit=LENGTH)
    NeverHolds.sent = 0
    async with beside(NeverHolds) as orchestrator:
        completion = await generate(orchestrator, asked)
    assert completion.token_ids == written_alone(target(), asked)
    assert NeverHolds.sent < 16 * (LENGTH + 20)


class SendsNoMessages(DraftServicer):
    """Opens streams; what it writes is registered to be no message."""

    async def Draft(self, request_iterator: Any, context: Any) -> None:
        await context.write(b"\xff\xff\xff")
        await asyncio.sleep(3600.0)


def register_raw(register: Callable[..., None]) -> Callable[..., None]:
    """Return a registration under which a servicer may write bytes."""

    def registered(servicer: Any, server: Any) -> None:
        real = grpc.stream_stream_rpc_method_handler

        def handler(
            function: Any, request_deserializer: Any = None, response_serializer: Any = None
        ) -> Any:
            def write(message: Any) -> Any:
                return message if isinstance(message, bytes) else response_serializer(message)

            return real(function, request_deserializer, write)

        grpc.stream_stream_rpc_method_handler = handler
        try:
            register(servicer, server)
        finally:
            grpc.stream_stream_rpc_method_handler = real

    return registered


@pytest.mark.fault(
    "hang",
    "A peer sends bytes that are no message",
    before="the task that read them died, and the generation waited for its deadline",
    now="of a draft the text needs nothing; a target ends the generation with an error at once",
)
@pytest.mark.parametrize("peer", ["draft", "target"])
async def test_bytes_that_are_no_message_end_their_stream(
    peer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.backoff.LONGEST_PAUSE", 0.1)

    class Target(TARGET.make_servicer.func):  # type: ignore[misc, name-defined]
        async def Verify(self, request_iterator: Any, context: Any) -> None:
            await context.write(b"\xff\xff\xff")
            await asyncio.sleep(3600.0)

    raw_draft = Role(
        "Draft",
        partial(SendsNoMessages, alias="", support=64, tail=0.0),
        register_raw(DRAFT.register),
        DRAFT.stub,
    )
    raw_target = Role(
        "Target", partial(Target, alias=""), register_raw(TARGET.register), TARGET.stub
    )
    role = TARGET if peer == "draft" else raw_target
    asked = request(token_limit=LENGTH)
    async with (
        running(ModelProcess(role, target, pace=PACE)) as service,
        running(ModelProcess(raw_draft, partial(toy, seed=2))) as its_draft,
        running(
            OrchestratorProcess(service.address, its_draft.address, request_seconds=60.0)
        ) as orchestrator,
    ):
        await orchestrator.until_ready()
        if peer == "draft":
            completion = await generate(orchestrator, asked)
            assert completion.token_ids == written_alone(target(), asked)
            return
        begin = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await generate(orchestrator, asked)
        assert "no message" in (failure.value.details() or "")
        assert time.monotonic() - begin < 30.0


# --- descriptions ---


def describe(**changes: Any) -> common.GetModelResponse:
    response = common.GetModelResponse(
        identity=bytes(32),
        context_token_count=100,
        session_count=1,
        vocabulary=common.Vocabulary(token_count=50, bos_token_id=-1, eos_token_id=2),
        decode_costs=[common.DecodeCost(row_count=1, milliseconds=30.0)],
    )
    response.vocabulary.eot_token_id = -1
    for name, value in changes.items():
        if name == "costs":
            del response.decode_costs[:]
            for rows, milliseconds, *slope in value:
                cost = response.decode_costs.add(row_count=rows, milliseconds=milliseconds)
                cost.microseconds_per_token = sum(slope)
        elif name == "fim":
            response.vocabulary.fim_tokens.CopyFrom(common.FimTokens(**value))
        elif name.startswith("vocabulary_"):
            setattr(response.vocabulary, name.removeprefix("vocabulary_"), value)
        else:
            setattr(response, name, value)
    return response


WRONG = [
    {"costs": [(1, float("nan"))]},
    {"costs": [(1, float("inf"))]},
    {"costs": [(1, 0.0)]},
    {"costs": [(1, -1.0)]},
    {"costs": [(0, 1.0)]},
    {"costs": [(1, 1.0, -1.0)]},
    {"costs": [(1, 1.0, float("nan"))]},
    {"costs": [(4, 1.0), (2, 2.0)]},
    {"costs": [(i, 1.0) for i in range(1, 300)]},
    {"costs": [(1, 1.0), (2**31 - 1, 2.0)]},
    {"context_token_count": 0},
    {"session_count": -1},
    {"thread_count": -5},
    {"identity": b"short"},
    {"chat_template": "x" * (1 << 21)},
    {"model_name": "x" * 2000},
    {"vocabulary_token_count": 0},
    {"vocabulary_token_count": 2**31 - 1},
    {"vocabulary_bos_token_id": 50},
    {"vocabulary_eos_token_id": -2},
    {"fim": {"prefix_token_id": 50}},
    {"fim": {"middle_token_id": -1}},
    {"fim": {"file_token_id": -2}},
]


def test_a_usual_description_is_taken() -> None:
    check_model(describe())
    check_model(describe(costs=[(1, 66.0), (4, 55.0), (8, 100.0)]))  # four rows may cost less
    check_model(describe(costs=[]))
    check_model(describe(fim={"suffix_token_id": 49, "file_token_id": -1}))


@pytest.mark.parametrize("changes", WRONG, ids=lambda changes: str(changes)[:40])
def test_a_description_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        check_model(describe(**changes))


class DescribesItself(DraftServicer):
    """Describes itself as `change` says, and lists `texts` more texts than names."""

    change: Callable[[common.GetModelResponse], None] = staticmethod(lambda response: None)
    lists_for_ever = False
    drops_names = 0

    async def GetModel(self, request: Any, context: Any) -> Any:
        response = await super().GetModel(request, context)
        type(self).change(response)
        return response

    async def ListVocabulary(self, request: Any, context: Any) -> Any:
        async for part in super().ListVocabulary(request, context):
            if self.drops_names:
                del part.token_names[-self.drops_names :]
            yield part
            while self.lists_for_ever:
                yield part


def has_no_number(response: common.GetModelResponse) -> None:
    response.decode_costs[0].milliseconds = float("nan")


def has_no_plain_cost(response: common.GetModelResponse) -> None:
    response.plain_costs.alone_milliseconds = float("nan")


def has_no_rows(response: common.GetModelResponse) -> None:
    response.decode_costs[0].row_count = 0


@pytest.mark.fault(
    "crash",
    "A draft describes itself with NaN, zero rows, falling rows or fewer names than texts",
    before="generations and GetStatus failed with INTERNAL, and the watch on it ended for good",
    now="a description is checked as it arrives; such a draft is refused, and watched further",
)
@pytest.mark.parametrize(
    "members",
    [
        {"change": staticmethod(has_no_number)},
        {"change": staticmethod(has_no_plain_cost)},
        {"change": staticmethod(has_no_rows)},
        {"drops_names": 3},
        {"lists_for_ever": True},
    ],
    ids=["nan", "nan alone", "zero rows", "fewer names", "endless"],
)
async def test_a_draft_that_describes_itself_wrongly_is_refused_and_watched(
    members: dict[str, Any],
) -> None:
    servicer = type("Servicer", (DescribesItself,), members)
    asked = request(token_limit=LENGTH)
    async with beside(servicer) as orchestrator:
        peer = orchestrator.pool.drafts[0].peer
        assert peer is not None
        await eventually(lambda: peer.state is PeerState.REFUSED)
        assert "describes itself wrongly" in (await orchestrator.status()).reason
        completion = await generate(orchestrator, asked)
        assert completion.token_ids == written_alone(target(), asked)
        # It is mended and comes back: nobody has to restart the orchestrator for that.
        for name, value in (("drops_names", 0), ("lists_for_ever", False)):
            setattr(servicer, name, value)
        servicer.change = staticmethod(lambda response: None)  # type: ignore[attr-defined]
        await eventually(lambda: not orchestrator.pool.obstacle())


# --- the rejection rule ---


class Lies(DraftServicer):
    """Sends rows for which the token is not the draw; the text would be what it likes."""

    async def Draft(self, request_iterator: Any, context: Any) -> None:
        async for each in request_iterator:
            order = each.order
            end = order.committed.position + len(order.committed.token_ids)
            response = draft.DraftResponse(completed_order=order.order)
            response.frame.base = response.frame.position = end
            for _ in range(max(0, order.draft_until - end)):
                response.frame.token_ids.append(7)
                response.frame.distributions.add(token_ids=[7, 8], weights=[1, 65535])
            await context.write(response)


@pytest.mark.fault(
    "text",
    "Under rejection a draft lies about the row that its token was drawn from",
    before="47 of 47 such tokens were accepted: the draft wrote the text",
    now="a token has to be the draw that its key makes from its row, and coins have another seed",
)
async def test_under_rejection_a_token_that_is_no_draw_from_its_row_is_no_draft() -> None:
    asked = request(token_limit=LENGTH, acceptance=common.ACCEPTANCE_RULE_REJECTION)
    async with beside(Lies) as orchestrator:
        completion = await generate(orchestrator, asked)
        assert "draws from their rows" in orchestrator.pool.obstacle()
    assert len(completion.token_ids) == LENGTH
    assert completion.origin_count(messages.TOKEN_ORIGIN_DRAFTED) == 0


# --- anything ---


@pytest.mark.fault(
    "hang",
    "A draft answers at random: any field, any value, floods, silence",
    before="generations hung, failed or blocked all others",
    now="ten minutes of it change no text, miss no deadline and fill no process",
)
async def test_nothing_that_a_draft_sends_changes_a_text_or_misses_a_deadline() -> None:
    for honest in (True, False):
        async with (
            hostile_process(seed=1000, describes_itself=honest) as draft_address,
            over(draft_address, request_seconds=30.0) as orchestrator,
            Vitals() as vitals,
        ):
            end, number, faults = time.monotonic() + RANDOM_SECONDS / 2, 0, 0
            [paired] = orchestrator.pool.drafts
            known = paired
            while time.monotonic() < end or (
                faults < LEAST_FAULTS and time.monotonic() < end + PATIENCE
            ):
                number += 1
                assert "ejected for" not in orchestrator.pool.obstacle()
                asked = request(
                    f"text {number}", seed=number, token_limit=LENGTH, temperature=number % 2 * 0.8
                )
                completion = Completion()
                await generate(orchestrator, asked, into=completion, timeout=30.0)
                alone = await asyncio.to_thread(written_alone, target(), asked)
                assert completion.token_ids == alone, f"text {number}"
                faults += known.health.ejections
                known.health = Health()  # nobody is ejected here
            assert orchestrator.pool.target.ready
            await orchestrator.status()
        assert number > 5
        assert faults >= LEAST_FAULTS, "it went on after its first fault"
        assert vitals.growth < 100e6
        assert vitals.longest_block < 0.2
