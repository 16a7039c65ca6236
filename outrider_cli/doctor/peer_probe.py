"""Probes a service to see what it is, how far away it is, and what it says of itself."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider import handshake
from outrider.descriptions import level_of
from outrider.errors import InvalidConfig, OutriderError, Unauthenticated, VocabularyMismatch
from outrider.rpc.channel import Address, explain_refusal, open_channel, read_address
from outrider.rpc.security import ClientSecurity, call_metadata
from outrider.rpc.statuses import describe
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.v1.draft_service_pb2_grpc import DraftServiceStub
from outrider.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub
from outrider.v1.target_service_pb2_grpc import TargetServiceStub
from outrider.vocabulary_pieces import LESSON_BYTES, VocabularyReader, lesson, vocabulary_key
from outrider_cli.doctor.checks import Finding, judge_pairing
from outrider_cli.doctor.peer_checks import CallFailure, ProbedPeer, judge_head

ROLES = ("orchestrator", "target", "draft")

_CALLS = 20  # small ones, for the round trip
_CALL_SECONDS = 3.0  # s; deadline of one call
_LIST_SECONDS = 20.0  # the vocabulary of a large model is some megabytes

_STUBS: dict[str, Any] = {
    "orchestrator": OrchestratorServiceStub,
    "target": TargetServiceStub,
    "draft": DraftServiceStub,
}
_SERVING = health_pb2.HealthCheckResponse.SERVING


class _Failed(Exception):
    """A probe came to its end."""

    def __init__(self, failure: CallFailure, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure


async def probe_peer(role: str, address: str, security: ClientSecurity) -> ProbedPeer:
    """Return what was found; a service that cannot be used is no error. Takes some seconds."""
    try:
        to = read_address(role, address)
        expiry = await _connect(to, security)
        metadata = call_metadata(security)
        async with open_channel(address, security) as channel:
            return await _ask(role, address, channel, metadata, expiry)
    except InvalidConfig as error:
        return ProbedPeer(
            role=role, address=address, failure=CallFailure.OPTIONS, detail=str(error)
        )
    except _Failed as error:
        return ProbedPeer(role=role, address=address, failure=error.failure, detail=str(error))
    except grpc.aio.AioRpcError as error:
        failure, detail = _explain(error, role, address, security)
        return ProbedPeer(role=role, address=address, failure=failure, detail=detail)


async def whose_port(address: str, security: ClientSecurity) -> str | None:
    """Return which of our services listens at an address, in words; None for anything else."""
    try:
        metadata = call_metadata(security)
        async with open_channel(address, security) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            for role in ROLES:
                status = await _health(stub, role, metadata)
                if status is not None:
                    return f"{_article(role)} {role} {_in_words(status)} there"
    except (InvalidConfig, grpc.aio.AioRpcError) as error:
        code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return "a service that wants a token listens there"
    return None


async def compare(target: str, draft: str, security: ClientSecurity) -> list[Finding]:
    """Return whether two services fit, as the orchestrator would; nothing if one does not say."""
    try:
        metadata = call_metadata(security)
        async with open_channel(target, security) as one, open_channel(draft, security) as other:
            stubs: list[Any] = [TargetServiceStub(one), DraftServiceStub(other)]
            described = [await _model(stub, metadata) for stub in stubs]
            handshake.check_head(*described)
            translated = await _translation(described, stubs, metadata)
            if translated is not None:
                return [translated]
            begin = time.perf_counter()
            described[1] = await _model(stubs[1], metadata)
            trip = time.perf_counter() - begin
            head = judge_head(draft, described[0], described[1], trip)
            if handshake.check_vocabularies(described[0].vocabulary, described[1].vocabulary):
                names = [await _list_names(stub, metadata) for stub in stubs]
                handshake.check_names(names[0], names[1])
    except VocabularyMismatch as error:
        return [judge_pairing(str(error), error.metadata["rule"])]
    except (InvalidConfig, grpc.aio.AioRpcError):
        return []
    return [judge_pairing(), *head]


async def _translation(
    described: Sequence[Any], stubs: Sequence[Any], metadata: Any
) -> Finding | None:
    """Return how the draft translates, which it then knows; None where its ids are the target's."""
    target, draft = described
    if not draft.translates:
        return None
    try:
        if handshake.check_vocabularies(target.vocabulary, draft.vocabulary):
            names = [await _list_names(stub, metadata) for stub in stubs]
            handshake.check_names(names[0], names[1])
        return None
    except VocabularyMismatch as error:
        reader = VocabularyReader(target.vocabulary.token_count, LESSON_BYTES)
        listed = stubs[0].ListVocabulary(
            common.ListVocabularyRequest(), timeout=_LIST_SECONDS, metadata=metadata
        )
        async for tokens in listed:
            reader.add(tokens)
        vocabulary = reader.finish()
        pieces = lesson(
            vocabulary_key(target.vocabulary, vocabulary), target.vocabulary, vocabulary
        )
        learned = await stubs[1].LearnVocabulary(pieces, timeout=_LIST_SECONDS, metadata=metadata)
        its = learned.differences, learned.shared_mass, level_of(learned)
        return judge_pairing(str(error), error.metadata["rule"], *its)


# --- the steps of a probe ---


async def _connect(to: Address, security: ClientSecurity) -> float | None:
    """Return the seconds until the certificate expires, None where that is not seen.

    TCP distinguishes what gRPC has one word for. Raises _Failed.
    """
    tls = None
    if security.tls_ca is not None and not to.plain:
        with contextlib.suppress(OSError):
            tls = ssl.create_default_context(cafile=security.tls_ca)
            tls.set_alpn_protocols(["h2"])
    host = to.host.strip("[]")
    try:
        async with asyncio.timeout(_CALL_SECONDS):
            _, writer = await asyncio.open_connection(host, to.port)
            writer.close()
            return None if tls is None else await _expiry(host, to.port, tls)
    except TimeoutError:
        raise _Failed(CallFailure.TIMEOUT, f"no answer within {_CALL_SECONDS:.0f} s") from None
    except ConnectionRefusedError:
        raise _Failed(CallFailure.REFUSED, "the connection is refused: nothing listens") from None
    except socket.gaierror as error:
        raise _Failed(CallFailure.UNKNOWN_HOST, f"{host}: {error.strerror}") from None
    except OSError as error:
        raise _Failed(CallFailure.UNREACHABLE, error.strerror or str(error)) from None


async def _expiry(host: str, port: int, tls: ssl.SSLContext) -> float | None:
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=tls)
    except OSError:  # of which SSLError is one: gRPC will say why
        return None
    certificate = writer.get_extra_info("peercert") or {}
    writer.close()
    end = certificate.get("notAfter")
    return None if end is None else ssl.cert_time_to_seconds(end) - time.time()


async def _ask(
    role: str, address: str, channel: grpc.aio.Channel, metadata: Any, expiry: float | None
) -> ProbedPeer:
    health: Any = health_pb2_grpc.HealthStub(channel)
    status = await _health(health, role, metadata)
    if status is None:
        for other in ROLES:
            if await _health(health, other, metadata) is not None:
                detail = f"{_article(other)} {other} listens there, not {_article(role)} {role}"
                raise _Failed(CallFailure.OTHER_SERVICE, detail)
        raise _Failed(CallFailure.OTHER_SERVICE, "what listens there is not Outrider")
    trips = []
    for _ in range(_CALLS):
        begin = time.perf_counter()
        await _health(health, role, metadata)
        trips.append(time.perf_counter() - begin)
    found = ProbedPeer(
        role=role,
        address=address,
        serving=status == _SERVING or role == "orchestrator",  # its status says what it waits for
        round_trips=tuple(trips),
        expiry_seconds=expiry,
    )
    stub = _STUBS[role](channel)
    if role == "orchestrator":
        return replace(found, status=await _status(stub, metadata))
    return replace(found, model=await _model(stub, metadata)) if found.serving else found


async def _health(stub: Any, role: str, metadata: Any) -> int | None:
    """Return the health of a role's service, None where another one listens."""
    request = health_pb2.HealthCheckRequest(service=f"outrider.v1.{role.capitalize()}Service")
    try:
        response = await stub.Check(request, timeout=_CALL_SECONDS, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED):
            return None
        raise
    return int(response.status)


async def _model(stub: Any, metadata: Any) -> common.GetModelResponse:
    request = common.GetModelRequest()
    response: common.GetModelResponse = await stub.GetModel(
        request, timeout=_CALL_SECONDS, metadata=metadata
    )
    return response


async def _status(stub: Any, metadata: Any) -> messages.GetStatusResponse:
    request = messages.GetStatusRequest()
    response: messages.GetStatusResponse = await stub.GetStatus(
        request, timeout=_CALL_SECONDS, metadata=metadata
    )
    return response


async def _list_names(stub: Any, metadata: Any) -> list[bytes]:
    request = common.ListVocabularyRequest()
    call = stub.ListVocabulary(request, timeout=_LIST_SECONDS, metadata=metadata)
    return [name async for part in call for name in part.token_names]


def _explain(
    error: grpc.aio.AioRpcError, role: str, address: str, security: ClientSecurity
) -> tuple[CallFailure, str]:
    refusal = explain_refusal(error, role, address, security)
    detail = str(refusal).removeprefix(f"the {role} at {address} ")
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return CallFailure.TOKEN, detail
    if refusal is not None:
        return _distrust(refusal), detail
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return CallFailure.TIMEOUT, f"it did not answer a call within {_CALL_SECONDS:.0f} s"
    return CallFailure.BROKEN, describe(error)


def _distrust(refusal: OutriderError) -> CallFailure:
    """Return why a service is not trusted, or does not let us in."""
    for words, failure in (
        ("has expired", CallFailure.EXPIRED),
        ("not valid yet", CallFailure.NOT_YET),
    ):
        if words in str(refusal):
            return failure
    return CallFailure.TRUST if isinstance(refusal, Unauthenticated) else CallFailure.OPTIONS


def _article(role: str) -> str:
    return "an" if role == "orchestrator" else "a"


def _in_words(status: int) -> str:
    return "serves" if status == _SERVING else "is not ready yet"
