"""The predecessor library's methods over JSON-RPC: completions at once, or as jobs to be polled."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from outrider import request_scope
from outrider.access import current_caller
from outrider.client import (
    CallFailed,
    Delta,
    Finished,
    OutriderClient,
    PeerState,
    Polled,
    Started,
    Status,
)
from outrider.errors import (
    InvalidConfig,
    InvalidRequest,
    NotFound,
    OutriderError,
    PeerUnavailable,
)
from outrider.grants import Right
from outrider.rpc.security import BEARER, HEADER
from outrider_jsonrpc.pairs import Pair, Pairs, model_name, read_wanted_pair
from outrider_jsonrpc.protocol import Method, one_object
from outrider_jsonrpc.shapes import (
    LibraryRequest,
    Progress,
    failure,
    piece,
    prompt_stats,
    read_command_line,
    read_library_request,
)

_log = logging.getLogger("outrider.jsonrpc")

_FATES = {PeerState.READY: 1, PeerState.REFUSED: -1}
"""What the library's `init_success` says of the target; 0 is not yet."""

_MOST_JOBS = 1024
"""Jobs that are known here; an orchestrator keeps fewer, unless it was told to keep more."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, by the name that it gives itself, if any.

    Two tokens, each of a name of its own, are never the same caller's.
    """

    name: str
    token: str = ""  # its name
    idempotency_key: str = field(default="", compare=False)  # of this request


@dataclass(eq=False, slots=True)
class _Job:
    """A job of a caller: what it has brought, and how far the caller has taken it."""

    caller: Caller
    pair: Pair  # that writes it
    progress: Progress
    cursor: int = 0
    is_over: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class LibraryRpc:
    """The methods of all callers; `init` loads other models where `may_load`."""

    def __init__(self, pairs: Pairs, may_load: bool = False) -> None:
        self._pairs = pairs
        self._may_load = may_load
        self._jobs: OrderedDict[str, _Job] = OrderedDict()  # by id, the oldest first

    def methods(self, caller: Caller) -> dict[str, Method]:
        """Return what `caller` may call, by name."""

        def bound(
            method: Callable[[Caller, Mapping[str, Any]], Awaitable[Any]],
        ) -> Method:
            async def call(params: Mapping[str, Any]) -> Any:
                try:
                    return await method(caller, params)
                except OutriderError as error:
                    named = _under_its_name(error)
                    if (scope := request_scope.current()) is not None:
                        named.metadata["requestId"] = scope.id
                    raise named from error

            return one_object(call)

        methods = {
            "tokenize": self._tokenize,
            "detokenize": self._detokenize,
            "embedding": self._embedding,
            "get_completion": self._get_completion,
            "async_completion_init": self._start,
            "async_completion_poll": self._poll,
            "async_completion_cancel": self._cancel,
            "poll_system_status": self._status,
            "deinit": self._deinit,
        }
        bound_methods = {name: bound(method) for name, method in methods.items()}
        # These also take a command line, which is no JSON text.
        return bound_methods | {
            "init": _with_command_line(bound(self._init)),
            "init_async": _with_command_line(bound(self._init_async)),
        }

    def _client(self, pair: Pair | None = None) -> OutriderClient:
        """Return the client of a pair, the one in use unless told otherwise, for this request.

        The orchestrator is shown the caller's own token, where one is wanted here.
        """
        metadata = dict(request_scope.carried())
        if shown := current_caller().credentials:
            metadata[HEADER] = BEARER + shown.decode("latin-1")
        client = (pair or self._pairs.now).client
        return client.with_metadata(metadata)

    # --- the system ---

    async def _init(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        """Put a pair in use and wait until it is; loading continues when the caller hangs up."""
        loading = await self._begin(params)
        failed = await asyncio.shield(loading) if loading is not None else None
        if failed is not None:
            raise failed
        return await self._status(caller, params)

    async def _init_async(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        await self._begin(params)
        return await self._status(caller, params)

    async def _begin(self, params: Mapping[str, Any]) -> asyncio.Task[OutriderError | None] | None:
        """Begin to load what is wanted; return None if it is in use. Raises PermissionDenied."""
        if self._may_load:
            current_caller().grant.check(Right.OPERATOR)
            return await self._pairs.begin(read_wanted_pair(params))
        _confirm(params, await self._client().status())
        return None

    async def _status(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        try:
            target = (await self._client().status()).peer("target")
        except CallFailed as error:
            if error.reason != "UNAVAILABLE":
                raise
            target = None
        name = target.model.name if target and target.model else ""
        status = {
            "init_success": _FATES.get(target.state, 0) if target else 0,
            "model_alias": name,
            "model": name,
        }
        if self._pairs.is_loading:
            status["init_success"] = 0
        elif (failed := self._pairs.failure) is not None:
            status |= {"init_success": -1, "error": failure(failed)["error"]}
        return status

    async def _deinit(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        """End the caller's jobs; the models belong to all."""
        mine = [(job_id, job) for job_id, job in self._jobs.items() if job.caller == caller]
        for job_id, job in mine if caller.name else ():
            await self._end(job_id, job)
            self._jobs.pop(job_id, None)
        return {"success": True}

    # --- text and tokens ---

    async def _tokenize(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        text = params.get("text")
        if not isinstance(text, str):
            return {"success": False}
        tokens = await self._client().tokenize(text)
        return {
            "success": True,
            "tokens": [piece(token.text) for token in tokens],
            "length": len(tokens),
        }

    async def _detokenize(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        ids = params.get("tokens")
        if not isinstance(ids, list) or not all(type(each) is int for each in ids):
            raise InvalidRequest("tokens", "must be a list of token ids")
        if not all(0 <= each < 2**31 for each in ids):
            raise InvalidRequest("tokens", "holds an id outside the vocabulary")
        return {"content": await self._client().detokenize(ids)}

    async def _embedding(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        text = params.get("content")
        if not isinstance(text, str):
            raise InvalidRequest("content", "must be a text")
        [embedding] = await self._client().embed([text])
        return {"embedding": embedding}

    # --- completions ---

    async def _get_completion(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        asked = await self._read(params)
        progress: Progress | None = None
        answer: dict[str, Any] = {}
        cached_count, client = 0, self._client()
        try:
            async with aclosing(client.generate(asked.request)) as stream:
                async for event in stream:
                    if isinstance(event, Started):
                        progress = Progress(asked, event)
                    elif isinstance(event, Delta) and progress is not None:
                        progress.add(event)
                    elif isinstance(event, Finished) and progress is not None:
                        cached_count = event.statistics.cached_token_count
                        answer = progress.final(event)
        except CallFailed as error:
            if progress is None or error.reason not in _ON_THE_WAY:
                raise
            answer = progress.interrupted(error)
        if progress is not None:
            answer |= await _prompt_stats(client, progress.started, cached_count)
        if asked.said.get("__debug"):
            _log_text("completion", params, answer)
        return answer

    async def _start(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        pair = self._pairs.now
        asked, client = await self._read({**params, "stream": None}), self._client(pair)
        job_id, started = await client.submit(asked.request, caller.idempotency_key)
        self._jobs.setdefault(job_id, _Job(caller, pair, Progress(asked, started)))
        while len(self._jobs) > _MOST_JOBS:
            self._jobs.popitem(last=False)
        if asked.said.get("__debug"):
            _log_text("job", params, {"job_id": job_id})
        stats = await _prompt_stats(client, started, started.cached_token_count)
        return {"success": True, **stats, "job_id": job_id}

    async def _poll(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        """Return what came since the last poll, and whether that was all."""
        job_id, job = self._named(caller, params)
        updates: list[dict[str, Any]] = []
        async with job.turn:
            if not job.is_over:
                updates = await self._news(job_id, job)
                if job.is_over and job.progress.asked.said.get("__debug"):
                    whole = {**updates[-1]} if updates else {}
                    whole["content"] = job.progress.text
                    _log_text("job over", {"job_id": job_id}, whole)
        return {"success": True, "completion_updates": updates, "finished": job.is_over}

    async def _news(self, job_id: str, job: _Job) -> list[dict[str, Any]]:
        """Return the updates since those that were taken. Raises NotFound."""
        if job.pair.is_closed:  # another pair took the place of the one that wrote it
            job.is_over = True
            return [job.progress.final(None, content="", is_job=True) | {"cancelled": True}]
        try:
            polled = await self._client(job.pair).poll(job_id, job.cursor)
        except CallFailed as error:
            if error.reason == "NOT_FOUND":
                self._jobs.pop(job_id, None)
            raise
        job.cursor, job.is_over = polled.next_cursor, polled.finished
        return _updates(job.progress, polled)

    async def _cancel(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        await self._end(*self._named(caller, params))
        return {"success": True}

    async def _end(self, job_id: str, job: _Job) -> None:
        if job.pair.is_closed or job.is_over:
            return
        try:
            await self._client(job.pair).cancel(job_id)
        except CallFailed as error:
            if error.reason != "NOT_FOUND":  # it is over, and forgotten by now
                raise

    def _named(self, caller: Caller, params: Mapping[str, Any]) -> tuple[str, _Job]:
        """Return the job that a call is about: the one it names, or the named caller's latest."""
        named = params.get("job_id")
        if not (named or caller.name):
            raise InvalidRequest("job_id", "is needed without the header Outrider-Client")
        if not named:
            latest = (
                job_id for job_id, job in reversed(self._jobs.items()) if job.caller == caller
            )
            named = next(latest, None)
        job = self._jobs.get(named) if isinstance(named, str) else None
        is_operator = current_caller().grant.allows(Right.OPERATOR)
        if job is None or not (job.caller.token == caller.token or is_operator):
            is_none = f"{named!r} is no job" if named else "there is no job yet"
            raise NotFound("job_id", f"{is_none}, or is forgotten by now")
        assert isinstance(named, str)
        return named, job

    async def _read(self, params: Mapping[str, Any]) -> LibraryRequest:
        """Return what a caller wants. The target is asked for its vocabulary if biases name ids."""
        size = 0
        if params.get("logit_bias"):
            target = (await self._client().status()).peer("target")
            size = target.model.vocabulary_token_count if target and target.model else 0
        return read_library_request(params, size)


_ON_THE_WAY = ("DEADLINE_PASSED", "PEER_UNAVAILABLE", "UNAVAILABLE")
"""Reasons for which a completion ends with the text that there is."""


def _confirm(params: Mapping[str, Any], status: Status) -> None:
    """Refuse any other pair than the one that is served."""
    target, draft = status.peer("target"), status.peer("draft")
    for name, peer in (("model", target), ("model_draft", draft), ("draft_model", draft)):
        wanted = params.get(name)
        if wanted in (None, ""):
            continue
        if peer is None:
            raise InvalidConfig(name, "this orchestrator has no draft")
        if peer.model is None:
            raise PeerUnavailable(f"{name}: there is no such service yet")
        if peer.model.name not in (wanted, model_name(str(wanted))):
            raise InvalidConfig(
                name,
                f"this orchestrator serves {peer.model.name}; "
                "another model is served by services that were started with it",
            )


async def _prompt_stats(
    client: OutriderClient, started: Started, cached_count: int
) -> dict[str, Any]:
    """Return the key that says how a prompt was read; none where that cannot be asked for.

    The text that was written, or the id of the job, is worth more.
    """
    ids = started.prompt_token_ids
    try:
        cached = await client.detokenize(ids[:cached_count]) if cached_count else ""
        rest = await client.detokenize(ids[cached_count:])
    except CallFailed:
        return {}
    return {"prompt_stats": prompt_stats(started, cached_count, cached, rest)}


def _updates(progress: Progress, polled: Polled) -> list[dict[str, Any]]:
    updates = []
    for event in polled.events:
        if isinstance(event, Delta):
            updates.append(progress.add(event))
        elif isinstance(event, Finished):
            updates.append(progress.final(event, content="", is_job=True))
    if (failed := polled.failure) is not None:
        error = CallFailed(failed.reason, "", failed.message, dict(failed.metadata))
        updates.append({"content": "", "stop": True, **failure(error)})
    return updates


_NAMES = {
    "token_limit": "n_predict",
    "overflow.keep_token_count": "n_keep",
    "logprobs.top_count": "n_probs",
    "stop_sequences": "stop",
    "beam_count": "n_beams",
    "penalize_newline": "penalize_nl",
    "token_ids": "tokens",
    "inputs[0]": "content",
}
"""The library's names of what has another name here."""


def _under_its_name(error: OutriderError) -> OutriderError:
    """Return an error that names the field as the library's callers know it."""
    if error.reason == "UNAVAILABLE":  # no orchestrator answers
        return PeerUnavailable(str(error))
    name = _NAMES.get(error.metadata.get("field", ""))
    if name is None:
        return error
    return InvalidRequest(name, str(error).partition(": ")[2])


def _with_command_line(init: Method) -> Method:
    """Return `init` that also takes a command line as its only parameter."""

    async def method(params: Any) -> Any:
        only = params[0] if isinstance(params, list) and len(params) == 1 else None
        if isinstance(only, str) and not only.lstrip().startswith("{"):  # JSON text is for `init`
            params = read_command_line(only)
        return await init(params)

    return method


def _log_text(what: str, asked: Mapping[str, Any], answered: Mapping[str, Any]) -> None:
    """Log a request's own text, because it asked for it."""
    _log.info(
        "debug %s",
        what,
        extra={"fields": {"input": json.dumps(dict(asked)), "output": json.dumps(answered)}},
    )
