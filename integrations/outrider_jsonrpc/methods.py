"""The predecessor library's methods over JSON-RPC: completions at once, or as jobs to be polled."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from gateway.jsonrpc.protocol import Method, one_object
from gateway.jsonrpc.shapes import (
    LibraryRequest,
    Progress,
    failed,
    piece,
    prompt_stats,
    read_command_line,
    read_library_request,
)
from orchestrator.init_models import Launcher, model_name, read_wanted_pair
from orchestrator.salts import separate
from orchestrator.service import Orchestrator
from outrider import request_scope
from outrider.access import current_caller
from outrider.errors import (
    DeadlinePassed,
    InvalidConfig,
    InvalidRequest,
    NotFound,
    OutriderError,
    PeerUnavailable,
)
from outrider.grants import Right
from outrider.messages import PeerState
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider.wire import write_reference, writer_of

_log = logging.getLogger("outrider.orchestrator")

_FATES = {PeerState.READY: 1, PeerState.REFUSED: -1}
"""What the library's `init_success` says of the target; 0 is not yet."""


@dataclass(slots=True)
class _Job:
    """A job of a caller: what it has brought, and how far the caller has taken it."""

    progress: Progress
    cursor: int = 0
    is_over: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, by the name that it gives itself, if any, and where from.

    Only a name makes two calls the same caller's: an address may be a proxy's. Two tokens, each
    of a name of its own, are never the same caller's.
    """

    name: str
    address: str = field(default="", compare=False)
    token: str = ""  # its name


NOBODY = Caller("")


def _with_request(error: OutriderError) -> OutriderError:
    """Let an error say which request it is of."""
    if (scope := request_scope.current()) is not None:
        error.metadata["requestId"] = scope.id
    return error


class LegacyRpc:
    """The methods of all callers.

    Without a `launcher`, `init` loads nothing.
    """

    def __init__(self, orchestrator: Orchestrator, launcher: Launcher | None = None) -> None:
        self._orchestrator = orchestrator
        self._launcher = launcher
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._latest: dict[Caller, str] = {}  # by named caller: its newest job's id
        self._callers: dict[str, Caller] = {}  # by job
        # Notes of jobs from before a restart, by id, until somebody asks for one.
        self._before: dict[str, str] = {}
        self._recalling = asyncio.Lock()
        for job_id, note in orchestrator.job_notes().items():
            self._note_caller(job_id, Caller(**json.loads(note)["caller"]))
            self._before[job_id] = note

    def _note_caller(self, job_id: str, caller: Caller) -> None:
        self._callers[job_id] = caller
        if caller.name:
            self._latest[caller] = job_id

    def methods(self, caller: Caller) -> dict[str, Method]:
        """Return what `caller` may call, by name."""

        def bound(
            method: Callable[[Caller, Mapping[str, Any]], Awaitable[Any]],
        ) -> Method:
            async def call(params: Mapping[str, Any]) -> Any:
                try:
                    return await method(caller, params)
                except InvalidRequest as error:
                    raise _with_request(_under_its_name(error)) from error
                except OutriderError as error:
                    raise _with_request(error)  # noqa: B904 - it is the same one

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

    # --- the system ---

    async def _init(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        """Put a pair in use and wait until it is; loading continues when the caller hangs up."""
        loading = self._begin(params)
        failure = await asyncio.shield(loading) if loading is not None else None
        if failure is not None:
            raise failure
        return await self._status(caller, params)

    async def _init_async(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        self._begin(params)
        return await self._status(caller, params)

    def _begin(self, params: Mapping[str, Any]) -> asyncio.Task[OutriderError | None] | None:
        """Begin to load what is wanted; return None if it is in use. Raises PermissionDenied."""
        if self._launcher is not None:
            self._orchestrator.access.check(current_caller(), Right.OPERATOR, "init")
            return self._launcher.begin(read_wanted_pair(params))
        self._confirm(params)
        return None

    def _confirm(self, params: Mapping[str, Any]) -> None:
        """Refuse any other pair than the configured one."""
        target, draft = self._orchestrator.pool.target, self._orchestrator.pool.draft
        for name, peer in (("model", target), ("model_draft", draft), ("draft_model", draft)):
            wanted = params.get(name)
            if wanted in (None, ""):
                continue
            if peer is None:
                raise InvalidConfig(name, "this orchestrator has no draft")
            if peer.model is None:
                raise PeerUnavailable(f"{name}: there is no such service yet")
            if peer.model.model_name not in (wanted, model_name(str(wanted))):
                raise InvalidConfig(
                    name,
                    f"this orchestrator serves {peer.model.model_name}; "
                    "another model is served by services that were started with it",
                )

    async def _status(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        target = self._orchestrator.pool.target
        name = target.model.model_name if target.model else ""
        status = {
            "init_success": _FATES.get(target.state, 0),
            "model_alias": name,
            "model": name,
        }
        if self._launcher is not None and self._launcher.is_loading:
            status["init_success"] = 0
        elif self._launcher is not None and (failure := self._launcher.failure) is not None:
            status |= {"init_success": -1, "error": _shown(failure)}
        return status

    async def _deinit(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        """End the caller's jobs; the models belong to all."""
        mine = [job_id for job_id, owner in self._callers.items() if owner == caller]
        for job_id in mine if caller.name else ():
            await self._end(job_id)
            self._forget(job_id)
        return {"success": True}

    # --- text and tokens ---

    async def _tokenize(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        text = params.get("text")
        if not isinstance(text, str):
            return {"success": False}
        request = messages.TokenizeTextRequest(text=text, add_special=True)
        tokens = (await self._orchestrator.tokenize(request)).tokens
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
        response = await self._orchestrator.detokenize(messages.DetokenizeRequest(token_ids=ids))
        return {"content": response.text}

    async def _embedding(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        text = params.get("content")
        if not isinstance(text, str):
            raise InvalidRequest("content", "must be a text")
        request = messages.EmbedRequest()
        request.inputs.add().parts.add(text=text)
        try:
            response = await self._orchestrator.embed(request)
        except InvalidRequest as refusal:
            raise refusal.named("content") from refusal
        return {"embedding": list(response.embeddings[0].values)}

    # --- completions ---

    async def _get_completion(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        asked, texts = await self._read(params)
        progress: Progress | None = None
        answer: dict[str, Any] = {}
        stream = self._orchestrator.generate(asked.request, counts_cached=True)
        try:
            async with aclosing(stream):
                async for response in stream:
                    event = response.WhichOneof("event")
                    if event == "started":
                        progress = Progress(asked, response.started, texts)
                    elif event == "delta" and progress is not None:
                        progress.add(response.delta)
                    elif progress is not None:
                        answer = progress.final(response.finished)
        except (DeadlinePassed, PeerUnavailable) as error:
            if progress is None:
                raise
            answer = progress.interrupted(error)
        if progress is not None:
            answer["prompt_stats"] = prompt_stats(progress.started, progress.texts)
        if asked.fields.debug:
            _log_text("completion", params, answer)
        return answer

    async def _start(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        asked, texts = await self._read({**params, "stream": None})
        submission = messages.SubmitGenerationRequest(request=asked.request)
        who = caller.name or caller.address
        note = json.dumps({"caller": asdict(caller), "params": dict(params)})
        submitted = await self._orchestrator.submit(submission, who, note)
        job_id = submitted.job_id
        self._jobs[job_id] = _Job(Progress(asked, submitted.started, texts))
        self._note_caller(job_id, caller)
        self._forget_lost()
        if asked.fields.debug:
            _log_text("job", params, {"job_id": job_id})
        stats = prompt_stats(submitted.started, texts)
        return {"success": True, "prompt_stats": stats, "job_id": job_id}

    async def _poll(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        """Return what came since the last poll, and whether that was all."""
        job_id = self._named(caller, params)
        job = await self._job(job_id)
        updates: list[dict[str, Any]] = []
        async with job.turn:
            if not job.is_over:
                polled = await self._orchestrator.poll(
                    messages.PollGenerationRequest(job_id=job_id, cursor=job.cursor)
                )
                job.cursor = polled.next_cursor
                updates = self._updates(job, polled)
                job.is_over = polled.finished
                if job.is_over and job.progress.asked.fields.debug:
                    whole = {**updates[-1]} if updates else {}
                    whole["content"] = job.progress.text
                    _log_text("job over", {"job_id": job_id}, whole)
                with suppress(NotFound):
                    await self._orchestrator.take_job(job_id, job.cursor)
        return {"success": True, "completion_updates": updates, "finished": job.is_over}

    async def _job(self, job_id: str) -> _Job:
        """Return a job as its caller knows it, that of a process before this one included."""
        async with self._recalling:
            if note := self._before.get(job_id):
                params = {**json.loads(note)["params"], "stream": None}
                started, taken = await self._orchestrator.recall_job(job_id)
                hosted = await self._orchestrator.model()
                writer_of(started).check(hosted.reference)
                texts = hosted.vocabulary.texts
                progress = Progress(read_library_request(params, len(texts)), started, texts)
                for response in taken:
                    progress.add(response.delta)
                self._jobs[job_id] = _Job(progress, len(taken))
                del self._before[job_id]
        return self._jobs[job_id]

    @staticmethod
    def _updates(job: _Job, polled: messages.PollGenerationResponse) -> list[dict[str, Any]]:
        updates = []
        for response in polled.responses:
            if response.HasField("delta"):
                updates.append(job.progress.add(response.delta))
            elif response.HasField("finished"):
                updates.append(job.progress.final(response.finished, content="", is_job=True))
        if polled.HasField("error"):
            updates.append(failed(polled.error))
        return updates

    async def _cancel(self, caller: Caller, params: Mapping[str, Any]) -> Any:
        await self._end(self._named(caller, params))
        return {"success": True}

    async def _end(self, job_id: str) -> None:
        try:
            await self._orchestrator.cancel(messages.CancelGenerationRequest(job_id=job_id))
        except NotFound:
            return  # it is over, and forgotten by now

    def _named(self, caller: Caller, params: Mapping[str, Any]) -> str:
        """Return the job that a call is about: the one it names, or the named caller's latest."""
        job_id = params.get("job_id") or self._latest.get(caller)
        if not (job_id or caller.name):
            raise InvalidRequest("job_id", "is needed without the header Outrider-Client")
        if job_id not in self._jobs and job_id not in self._before:
            named = f"{job_id!r} is no job" if job_id else "there is no job yet"
            raise NotFound("job_id", f"{named}, or is forgotten by now")
        return str(job_id)

    def _forget_lost(self) -> None:
        """Forget the jobs that the orchestrator has forgotten."""
        known = [*self._jobs, *self._before]
        for job_id in [each for each in known if not self._orchestrator.knows_job(each)]:
            self._forget(job_id)

    def _forget(self, job_id: str) -> None:
        self._jobs.pop(job_id, None)
        self._before.pop(job_id, None)
        caller = self._callers.pop(job_id, NOBODY)
        if self._latest.get(caller) == job_id:
            del self._latest[caller]

    async def _read(self, params: Mapping[str, Any]) -> tuple[LibraryRequest, list[bytes]]:
        """Return what is asked for, of the model that is there now, and its token texts."""
        hosted = await self._orchestrator.model()
        texts = hosted.vocabulary.texts
        asked = read_library_request(params, len(texts))
        asked.request.model.CopyFrom(write_reference(hosted.reference))
        separate(asked.request, current_caller().credentials)
        return asked, texts


_NAMES = {
    "token_limit": "n_predict",
    "overflow.keep_token_count": "n_keep",
    "logprobs.top_count": "n_probs",
    "stop_sequences": "stop",
    "beam_count": "n_beams",
    "penalize_newline": "penalize_nl",
}
"""The library's names of what has another name here."""


def _under_its_name(error: InvalidRequest) -> InvalidRequest:
    """Return an error that names the field as the library's callers know it."""
    if error.field in _NAMES:
        name, (_, _, message) = _NAMES[error.field], str(error).partition(": ")
        return InvalidRequest(name, message)
    return error


def _shown(error: OutriderError) -> dict[str, str]:
    return {"reason": error.reason, "message": str(error), **error.metadata}


def _with_command_line(init: Method) -> Method:
    """Return `init` that also takes a command line as its only parameter."""

    async def method(params: Any) -> Any:
        if isinstance(params, list) and len(params) == 1 and isinstance(params[0], str):
            params = read_command_line(params[0])
        return await init(params)

    return method


def _log_text(what: str, asked: Mapping[str, Any], answered: Mapping[str, Any]) -> None:
    """Log a request's own text, because it asked for it."""
    _log.info(
        "debug %s",
        what,
        extra={"fields": {"input": json.dumps(dict(asked)), "output": json.dumps(answered)}},
    )
