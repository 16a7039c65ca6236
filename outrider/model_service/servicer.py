"""What the two model services have in common: the model's description and who owns a session."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import uuid
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import outrider
from outrider import handshake, wire
from outrider.descriptions import HEAD_NUMBERS
from outrider.engine.host import EngineHost
from outrider.engine.hosting import Loaded
from outrider.engine.model import FimTokens, Numerics, Rollback, VocabularyDescription
from outrider.engine.own_draft import OwnDraft
from outrider.engine.preparation import Prepared
from outrider.errors import Draining, InvalidRequest, PeerUnavailable, SessionTaken
from outrider.messages import MAX_DRAFT, SessionParameters
from outrider.tasks import first_of
from outrider.v1 import common_pb2 as common

_TEXTS_PER_MESSAGE = 4096


@dataclass(slots=True, eq=False)
class Ownership:
    """A session's newest stream. `taken` is done when a newer attempt came.

    `last` is the newest round (at the draft: order) that began on it.
    """

    attempt: int
    taken: asyncio.Future[None]
    last: int = 0


class Owners:
    """Which stream each session belongs to."""

    def __init__(self) -> None:
        self._by_session: dict[bytes, Ownership] = {}

    def __len__(self) -> int:
        return len(self._by_session)

    def __contains__(self, session_id: bytes) -> bool:
        return session_id in self._by_session

    def take(self, session_id: bytes, attempt: int) -> Ownership:
        """Make a stream the session's owner; an older one's `taken` is done.

        Raises SessionTaken when a newer attempt owns it.
        """
        owner = self._by_session.get(session_id)
        if owner is not None:
            if attempt < owner.attempt:
                raise SessionTaken(f"attempt {owner.attempt} owns the session")
            if not owner.taken.done():
                owner.taken.set_result(None)
        mine = Ownership(attempt, asyncio.get_running_loop().create_future())
        self._by_session[session_id] = mine
        return mine

    def release(self, session_id: bytes, mine: Ownership) -> bool:
        """End an ownership; return whether the session has no owner now, and had this one."""
        if self._by_session.get(session_id) is not mine:
            return False
        del self._by_session[session_id]
        return True

    def knows_later(self, request: common.RollbackRequest) -> bool:
        """Return whether a later round than that of a Rollback began on the session."""
        owner = self._by_session.get(request.session_id)
        return owner is not None and (request.attempt, request.round) < (owner.attempt, owner.last)


class ModelCalls:
    """The calls that every service of a model answers alike, with an engine and without."""

    def __init__(self) -> None:
        self._owners = Owners()

    @abstractmethod
    def description(self) -> common.GetModelResponse:
        """Return what GetModel answers now. Raises PeerUnavailable before it is known."""

    @abstractmethod
    def require_model(self, meant: common.ModelReference) -> object:
        """Raise ModelChanged if another model is meant, PeerUnavailable before it is known."""

    @abstractmethod
    def vocabulary_pieces(self) -> Iterator[common.ListVocabularyResponse]:
        """Yield what ListVocabulary streams."""

    @abstractmethod
    async def roll_back(self, request: common.RollbackRequest) -> common.RollbackResponse:
        """Truncate a session, unless a later round of it began."""

    async def GetModel(self, request: common.GetModelRequest, _: Any) -> common.GetModelResponse:
        return self.description()

    async def ListVocabulary(
        self, request: common.ListVocabularyRequest, _: Any
    ) -> AsyncIterator[common.ListVocabularyResponse]:
        self.require_model(request.model)
        for piece in self.vocabulary_pieces():
            yield piece

    async def Rollback(self, request: common.RollbackRequest, _: Any) -> common.RollbackResponse:
        return await self.roll_back(request)

    async def read_opening(
        self, requests: AsyncIterator[Any]
    ) -> tuple[SessionParameters, AsyncIterator[Any]]:
        """Return the session that a stream's first message opens, and what follows that message.

        Raises what `require_model` and `wire.read_opening` raise.
        """
        asked = await _first_opening(requests)
        self.require_model(asked.model)
        return wire.read_opening(asked), _after_opening(requests, asked)


class ModelService(ModelCalls):
    """The calls that the draft and the target service share."""

    def __init__(self, host: EngineHost, alias: str) -> None:
        super().__init__()
        self.host = host
        self._alias = alias
        # Without what changes; made once the model is loaded.
        self._response: common.GetModelResponse | None = None
        self._texts: list[bytes] = []  # by token id; empty until the model is loaded, as the names
        self._names: list[bytes] = []
        self.vocabulary_size = 0

    def set_loaded(self, loaded: Loaded) -> None:
        """Take note of the loaded model; until then calls get UNAVAILABLE."""
        self._texts = loaded.model.token_texts()
        self._names = loaded.model.token_names()
        self.vocabulary_size = len(self._names)
        self._response = describe(loaded, self._alias, handshake.digest(self._names))
        its = self._response.vocabulary
        self._response.bos_token_text = self._control_text(its.bos_token_id)
        self._response.eos_token_text = self._control_text(its.eos_token_id)

    def _control_text(self, token_id: int) -> str:
        """Return what stands for a control token in a template; empty for -1, which is none."""
        return self._names[token_id].decode("utf-8", "replace")[:256] if token_id >= 0 else ""

    def set_prepared(self, prepared: Prepared) -> None:
        """Take note of what was measured after the load."""
        describe_preparation(self.require_loaded(), prepared)

    def set_own_draft(self, draft: OwnDraft) -> None:
        """Take note of what drafts in the engine's thread from now on."""
        self.require_loaded().own_draft.CopyFrom(_describe_own_draft(draft))

    def require_loaded(self) -> common.GetModelResponse:
        """Return the description, or raise PeerUnavailable while the model loads."""
        if self._response is None:
            raise PeerUnavailable("the model is loading")
        return self._response

    def require_model(self, meant: common.ModelReference) -> common.GetModelResponse:
        """Return the description; raise ModelChanged if it is not of the model that is meant."""
        response = self.require_loaded()
        wire.read_reference(meant).check(wire.hosted_model(response))
        return response

    def description(self) -> common.GetModelResponse:
        response = common.GetModelResponse()
        response.CopyFrom(self.require_loaded())
        counters = self.host.counters
        response.activity.decode_count = counters.decodes
        response.activity.chunk_count = counters.chunks
        response.activity.token_count = counters.tokens
        response.activity.decoding_token_count = counters.decoding
        response.activity.open_duration.FromMicroseconds(int(1e6 * counters.open_seconds))
        response.activity.decode_duration.FromMicroseconds(int(1e6 * counters.decode_seconds))
        response.activity.session_count = self.host.session_count()
        response.activity.open_session_count = len(self._owners)
        return response

    def vocabulary_pieces(self) -> Iterator[common.ListVocabularyResponse]:
        for first in range(0, len(self._texts), _TEXTS_PER_MESSAGE):
            end = first + _TEXTS_PER_MESSAGE
            yield common.ListVocabularyResponse(
                first_token_id=first,
                token_texts=self._texts[first:end],
                token_names=self._names[first:end],
            )

    async def roll_back(self, request: common.RollbackRequest) -> common.RollbackResponse:
        self.require_loaded()
        session_id = wire.read_session_id(request.session_id)
        wire.at_least("token_count", request.token_count, 0)
        if self._owners.knows_later(request) or not self.counts_own_tokens(session_id):
            held = await asyncio.wrap_future(self.host.held_count(session_id))
        else:
            self.forget_reply(session_id)
            held = await asyncio.wrap_future(self.host.truncate(session_id, request.token_count))
        return common.RollbackResponse(held_token_count=held)

    async def CloseSession(
        self, request: common.CloseSessionRequest, _: Any
    ) -> common.CloseSessionResponse:
        self.require_loaded()
        session_id = wire.read_session_id(request.session_id)
        self.forget_reply(session_id)
        forgotten = self.host.forget(session_id)
        if session_id in self._owners:
            self.host.pin(session_id, True)  # its stream may continue, from nothing
        await asyncio.wrap_future(forgotten)
        return common.CloseSessionResponse()

    def counts_own_tokens(self, session_id: bytes) -> bool:
        """Return whether a session's text is counted in the tokens that the engine holds of it."""
        return True

    def forget_reply(self, session_id: bytes) -> None:
        """Drop what is kept to answer a repeated round."""

    # --- ownership ---

    def take(self, session_id: bytes, attempt: int) -> Ownership:
        """Make the caller's stream the session's owner.

        An older stream ends. Raises SessionTaken when a newer attempt owns it.
        """
        mine = self._owners.take(session_id, attempt)
        self.host.pin(session_id, True)
        return mine

    def release(self, session_id: bytes, mine: Ownership) -> None:
        """End the caller's ownership: the cache stays, and may be evicted."""
        if self._owners.release(session_id, mine):
            self.host.pin(session_id, False)


async def run_stream(owner: Ownership, *parts: Any) -> None:
    """Run the coroutines of a stream until one ends or a newer attempt takes the session.

    Raises what a part raises, or SessionTaken.
    """
    await first_of(_until_taken(owner), *parts)


async def _until_taken(owner: Ownership) -> None:
    """Raise SessionTaken once a newer attempt took the session."""
    await asyncio.shield(owner.taken)
    raise SessionTaken("a newer attempt owns the session")


async def _first_opening(requests: AsyncIterator[Any]) -> common.OpenSession:
    """Return the message that opens a stream."""
    async for request in requests:
        if request.WhichOneof("request") != "open":
            raise InvalidRequest("request", "the first message must open the session")
        opening: common.OpenSession = request.open
        return opening
    raise Draining("the stream ended before it was opened")


async def _after_opening(
    requests: AsyncIterator[Any], opening: common.OpenSession
) -> AsyncIterator[Any]:
    """Yield what follows the message that opened a stream.

    The same message once more says nothing new. Raises InvalidRequest for one that opens anything
    else.
    """
    number = 1
    async for request in requests:
        number += 1
        if request.WhichOneof("request") != "open":
            yield request
        elif request.open != opening:
            wrong = f"message {number} of the stream opens it otherwise than the first one did"
            raise InvalidRequest("open", wrong)


_CAPABILITIES = {
    Rollback.FULL: common.ROLLBACK_CAPABILITY_FULL,
    Rollback.WINDOW: common.ROLLBACK_CAPABILITY_WINDOW,
    Rollback.SNAPSHOTS: common.ROLLBACK_CAPABILITY_SNAPSHOTS,
    Rollback.CHECKPOINTS: common.ROLLBACK_CAPABILITY_CHECKPOINTS,
    Rollback.RESTART: common.ROLLBACK_CAPABILITY_NONE,
}


def describe(loaded: Loaded, alias: str, digest: bytes) -> common.GetModelResponse:
    """Return the description of a loaded model."""
    model = loaded.model.describe()
    response = common.GetModelResponse(
        protocol_version=outrider.PROTOCOL_VERSION,
        service_version=outrider.__version__,
        model_name=alias or model.name,
        identity=model.identity,
        description=model.description,
        weight_byte_count=model.weight_bytes,
        parameter_count=model.parameter_count,
        context_token_count=model.context,
        session_count=model.sequence_count,
        vocabulary=describe_vocabulary(model.vocabulary, digest),
        rollback_capability=_CAPABILITIES[model.rollback],
        snapshot_token_count=model.snapshot_count,
        thread_count=model.thread_count,
        thread_choice=loaded.prepared.threads,
        system_info=model.system_info,
        cpu_kernels=model.kernels,
        round_draft_token_limit=MAX_DRAFT,
        machine_digest=machine_digest(),
        cores_digest=loaded.core_lock.cores_digest,
        core_count=loaded.core_lock.core_count,
        chat_template=model.chat_template,
        trained_context_token_count=model.trained_context,
        embedding_width=model.embedding_width,
        file_type=model.file_type,
        architecture=model.architecture,
        hidden_row_width=model.hidden_row_width,
        head=HEAD_NUMBERS[model.head_kind] if model.head_kind else None,
    )
    describe_preparation(response, loaded.prepared)
    if loaded.own_draft is not None:
        response.own_draft.CopyFrom(_describe_own_draft(loaded.own_draft))
    response.load_duration.FromMicroseconds(int(loaded.seconds * 1e6))
    return response


def _describe_own_draft(draft: OwnDraft) -> common.OwnDraft:
    return common.OwnDraft(
        model_name=draft.name,
        head=HEAD_NUMBERS[draft.head_kind] if draft.head_kind else None,
        token_milliseconds=1e3 * draft.costs.token,
        read_milliseconds=1e3 * draft.costs.read,
        weight_byte_count=draft.weight_bytes,
        token_limit=draft.most_tokens,
    )


def describe_preparation(response: common.GetModelResponse, prepared: Prepared) -> None:
    """Write which profile runs and what that costs, in place of what was said before."""
    is_exact = prepared.numerics is Numerics.EXACT
    response.numerics_profile = (
        common.NUMERICS_PROFILE_EXACT if is_exact else common.NUMERICS_PROFILE_NATIVE
    )
    del response.decode_costs[:]
    for each in prepared.costs:
        response.decode_costs.add(
            row_count=each.rows,
            milliseconds=1e3 * each.seconds,
            microseconds_per_token=1e6 * each.slope,
        )
    response.rough_decode_costs = prepared.is_rough
    response.cache_layout = prepared.layout
    response.tree_leaf_limit = prepared.tree_leaves
    response.checkpoint_milliseconds = 1e3 * prepared.rejection.checkpoint_seconds
    response.restore_milliseconds = 1e3 * prepared.rejection.restore_seconds
    plain = prepared.plain
    response.plain_costs.alone_milliseconds = 1e3 * plain.alone
    response.plain_costs.native_milliseconds = 1e3 * plain.native
    response.plain_costs.exact_milliseconds = 1e3 * (plain.exact or 0.0)


def machine_digest() -> bytes:
    """Return what is equal for two processes on one running kernel, containers included."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        boot = f"{uuid.getnode()} {socket.gethostname()}".encode()
    return hashlib.sha256(b"outrider" + boot).digest()[:16]


def describe_vocabulary(vocabulary: VocabularyDescription, digest: bytes) -> common.Vocabulary:
    """Return what two models compare before they work together."""
    return common.Vocabulary(
        type=vocabulary.type,
        token_count=vocabulary.token_count,
        bos_token_id=_or_none(vocabulary.bos),
        eos_token_id=_or_none(vocabulary.eos),
        eot_token_id=_or_none(vocabulary.eot),
        adds_bos=vocabulary.adds_bos,
        adds_eos=vocabulary.adds_eos,
        digest=digest,
        end_token_ids=vocabulary.end_token_ids,
        fim_tokens=_describe_fim(vocabulary.fim) if vocabulary.fim else None,
    )


def _describe_fim(tokens: FimTokens) -> common.FimTokens:
    return common.FimTokens(
        prefix_token_id=tokens.prefix,
        suffix_token_id=tokens.suffix,
        middle_token_id=tokens.middle,
        repository_token_id=_or_none(tokens.repository),
        file_token_id=_or_none(tokens.file),
    )


def _or_none(token_id: int | None) -> int:
    return -1 if token_id is None else token_id
