"""What reads messages: every method of every service, and the readers of what peers answer."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

import grpc

from orchestrator.peers import check_description
from outrider import handshake, wire, wire_drafts
from outrider.descriptions import check_learned, level_of
from outrider.errors import OutriderError
from outrider.rpc.channel import open_channel
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1.target_service_pb2_grpc import (
    TargetServiceStub,
    add_TargetServiceServicer_to_server,
)
from outrider.vocabulary_pieces import VocabularyReader
from target_service.servicer import TargetServicer
from tests.fuzz.cases import Case, parse, write
from tests.fuzz.subjects import SECONDS, VOCABULARY, Bugs, Fault
from tests.support.services import (
    DRAFT,
    TARGET,
    ModelProcess,
    OrchestratorProcess,
    Role,
    generate,
    request,
    running,
    toy,
    written_alone,
)
from tests.support.toy import NEVER, ToyModel

_MOST_READ = 300
_TEXT = 24
_UNCLEAR = ("UNKNOWN", "DATA_LOSS", "UNIMPLEMENTED")


def _target() -> ToyModel:
    return toy(keeps_decodes=False, seed=1, eos_bias=NEVER, sequence_count=6)


def _draft() -> ToyModel:
    return toy(keeps_decodes=False, seed=2, like=1, agreement=0.9, eos_bias=NEVER, sequence_count=6)


class _Services:
    """Three services with toy models in this process, and one text that stays right."""

    role = TARGET
    seconds = 2.0
    """A call may last for ever; its client gives it up after so long."""

    async def __aenter__(self) -> Any:
        self._stack = AsyncExitStack()
        enter = self._stack.enter_async_context
        self._target = await enter(running(ModelProcess(self.role, _target)))
        self._draft = await enter(running(ModelProcess(DRAFT, _draft)))
        made = OrchestratorProcess(
            self._target.address,
            self._draft.address,
            accept_drafts=True,
            request_seconds=SECONDS,
            draft_seconds=0.5,
        )
        self._orchestrator = await enter(running(made))
        await self._orchestrator.until_ready()
        self._bugs = self._stack.enter_context(Bugs())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def mutate(self, data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
        """Return a call with something changed."""
        return write(parse(data).mutated(rng))

    async def check(self) -> None:
        """Have a text written, which is what it always was. Raises Fault."""
        asked = request("the rain in spain", seed=5, token_limit=_TEXT)
        alone = await asyncio.to_thread(written_alone, _target(), asked)
        completion = await generate(self._orchestrator, asked, timeout=SECONDS)
        if completion.token_ids != alone:
            raise Fault(f"another text afterwards: {completion.token_ids}, not {alone}")
        self._bugs.check()


def _as_it_is(data: bytes) -> bytes:
    return data


class Calls(_Services):
    """Every method, called with any bytes."""

    name = "calls"

    async def __aenter__(self) -> Any:
        await super().__aenter__()
        self._channels = {
            "TargetService": await self._open(self._target.address),
            "DraftService": await self._open(self._draft.address),
            "OrchestratorService": await self._open(self._orchestrator.address),
        }
        self._channels["DraftRegistryService"] = self._channels["OrchestratorService"]
        return self

    async def _open(self, address: str) -> grpc.aio.Channel:
        return await self._stack.enter_async_context(open_channel(address))

    async def feed(self, data: bytes) -> str:
        """Call a method, and read its answers for a while; return the status of it."""
        case = parse(data)
        said = await self._call(case)
        self._bugs.check()
        if said in _UNCLEAR:
            raise Fault(f"{case.path} ended with {said}")
        return said

    async def _call(self, case: Case) -> str:
        method = case.method
        service = method.containing_service.name
        # All four kinds of calls are alike on the wire.
        call = self._channels[service].stream_stream(f"/{case.path}", _as_it_is, None)(
            timeout=self.seconds
        )
        try:
            sent = case.messages if method.client_streaming else case.messages[:1]
            for message in sent or ([] if method.client_streaming else [b""]):
                await call.write(message)
            await call.done_writing()
            for _ in range(_MOST_READ):
                if await call.read() is grpc.aio.EOF:
                    return (await call.code()).name
            return "READ"
        except grpc.aio.AioRpcError as error:
            return error.code().name
        except (asyncio.InvalidStateError, grpc.aio.UsageError):  # it is over already
            return (await call.code()).name
        finally:
            call.cancel()


# --- what peers answer ---


class _Scripted:
    """The context of a stream: its answers are those of a script, until that is at its end."""

    def __init__(self, context: Any, script: list[Any]) -> None:
        self._context, self._script = context, script

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, response: Any) -> None:
        """Send the next answer."""
        if self._script:
            scripted = self._script.pop(0)
            scripted.round = scripted.round or response.round
            response = scripted
        await self._context.write(response)


class ScriptedTarget(TargetServicer):
    """A target whose answers to one method are those of a script, and honest afterwards."""

    method = ""
    script: list[Any] = []  # noqa: RUF012  # of all streams
    repeats = False  # the script's first answer is that to every call

    def _next(self, method: str, honest: Any) -> Any:
        if self.method != method or not self.script:
            return honest
        return self.script[0] if self.repeats else self.script.pop(0)

    async def Verify(self, request_iterator: Any, context: Any) -> None:
        script = self.script if self.method == "Verify" else []
        await super().Verify(request_iterator, _Scripted(context, script))

    async def Tokenize(self, request: Any, context: Any) -> Any:
        return self._next("Tokenize", await super().Tokenize(request, context))

    async def CompileGrammar(self, request: Any, context: Any) -> Any:
        scripted = self._next("CompileGrammar", None)  # a toy compiles none
        return scripted or await super().CompileGrammar(request, context)

    async def CountCached(self, request: Any, context: Any) -> Any:
        return self._next("CountCached", await super().CountCached(request, context))

    async def Embed(self, request: Any, context: Any) -> Any:
        return self._next("Embed", await super().Embed(request, context))

    async def Score(self, request: Any, context: Any) -> Any:
        async for part in super().Score(request, context):
            yield self._next("Score", part)

    async def SearchBeams(self, request: Any, context: Any) -> Any:
        async for part in super().SearchBeams(request, context):
            yield self._next("SearchBeams", part)


def _read_frame(message: Any) -> None:
    wire.read_time(message.service_time)
    if message.HasField("frame"):
        wire_drafts.read_frame(message, VOCABULARY)


def _read_vocabulary(case: Case) -> None:
    reader = VocabularyReader(VOCABULARY, 1 << 16)
    for piece in case.read():
        reader.add(piece)
    reader.finish()


def _read_learned(message: Any) -> None:
    check_learned(message)
    level_of(message)


def _read_description(honest: Any, message: Any) -> None:
    for role in ("target", "draft"):
        check_description(role, message)
        handshake.check_rollback(role, message)
        handshake.check_vocabularies(honest.vocabulary, message.vocabulary)


class Answers(_Services):
    """What a target and a draft answer an orchestrator."""

    name = "answers"
    role = Role(
        "Target",
        partial(ScriptedTarget, alias=""),
        add_TargetServiceServicer_to_server,
        TargetServiceStub,
    )

    async def __aenter__(self) -> Any:
        await super().__aenter__()
        honest = self._target.servicer.description()
        self._readers: dict[str, Callable[[Any], None]] = {
            "Draft": _read_frame,
            "GetModel": partial(_read_description, honest),
            "LearnVocabulary": _read_learned,
        }
        return self

    async def feed(self, data: bytes) -> str:
        """Let answers be read; return what came of it: refused in our own words, or nothing."""
        case = parse(data)
        name = case.method.name
        try:
            if name == "ListVocabulary":
                _read_vocabulary(case)
            elif name in self._readers:
                for message in case.read():
                    self._readers[name](message)
            else:
                return await self._answered(name, case)
        except OutriderError as error:
            return error.reason
        return "read"

    async def _answered(self, name: str, case: Case) -> str:
        """Have a text written by a target that answers so."""
        ScriptedTarget.method, ScriptedTarget.script = name, list(case.read())
        try:
            await self._ask(name)
            said = "OK"
        except grpc.aio.AioRpcError as error:
            # A text may have no tokens.
            said = "EMPTY" if "is empty" in str(error.details()) else error.code().name
        finally:
            ScriptedTarget.method, ScriptedTarget.script = "", []
        self._bugs.check()
        # INVALID_ARGUMENT blames the caller; of a grammar it is the toy's, which reads none.
        is_blamed = said == "INVALID_ARGUMENT" and name != "CompileGrammar"
        if said in _UNCLEAR or is_blamed:
            raise Fault(f"a text ended with {said}")
        return said

    async def _ask(self, name: str) -> None:
        asked = request("the rain in spain", seed=5, token_limit=_TEXT)
        stub = self._orchestrator.stub
        if name == "Embed":
            text = messages.PromptParts(parts=[messages.PromptPart(text="a text")])
            answer = await stub.Embed(messages.EmbedRequest(inputs=[text]), timeout=self.seconds)
            if not all(map(math.isfinite, answer.embeddings[0].values)):
                raise Fault("an embedding that is no numbers")
            return
        if name == "SearchBeams":
            asked.beam_count = 3
        elif name == "Score":
            asked.prompt_logprobs = True
            asked.logprobs.top_count = 2
        elif name == "CompileGrammar":
            asked.sampling.grammar = 'root ::= "a"'
        elif name == "CountCached":
            asked.ClearField("seed")
        with suppress(asyncio.CancelledError):
            async for _ in stub.Generate(asked, timeout=self.seconds):
                pass
