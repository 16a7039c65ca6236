"""The pair of models that calls go to: the orchestrator's, or one that `init` had started here."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider import logs
from outrider.client import OutriderClient, PeerState, Status
from outrider.errors import (
    DeadlinePassed,
    EngineBusy,
    InvalidConfig,
    InvalidRequest,
    OutriderError,
    PeerUnavailable,
)
from outrider.processes import ANY_PORT, Child, watch
from outrider.rpc.security import ClientSecurity

MAX_TEXT = 4096
"""Characters of a path or a name, at most."""

COMMAND = (sys.executable, "-P", "-m", "outrider_cli")
"""Runs any service in a process of its own; the role and its options follow."""

_LOGGER = "outrider.jsonrpc"
_LOADING_SECONDS = 600.0  # s; for all of a pair, as long as any other request may take
_RETURN_SECONDS = 10.0  # s; for services that are expected to be there
_LOOK_SECONDS = 0.05  # s; between two looks at services that load
_BESIDE_THE_TARGET = ("--nice=19",)  # as `outrider up` has it


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPair:
    """What a caller wants to be served; models are files, or names of what is served."""

    model: str = ""
    draft_model: str = ""
    alias: str = ""
    options: tuple[str, ...] = ()  # of both services


def read_wanted_pair(params: Mapping[str, Any]) -> WantedPair:
    """Return what the parameters of `init` say. Raises InvalidRequest."""
    numbers = {"n_threads": "threads", "n_gpu_layers": "n-gpu-layers", "n_ctx": "ctx"}
    said = {name: _read_number(name, params.get(name)) for name in numbers}
    drafts = [_read_text(name, params.get(name)) for name in ("model_draft", "draft_model")]
    return WantedPair(
        model=_read_text("model", params.get("model")),
        draft_model=drafts[0] or drafts[1],
        alias=_read_text("model_alias", params.get("model_alias")),
        options=tuple(
            f"--{numbers[name]}={value}" for name, value in said.items() if value is not None
        ),
    )


@dataclass(eq=False, slots=True)
class Pair:
    """An orchestrator with its models; `wanted` is set for one that was started here."""

    client: OutriderClient
    wanted: WantedPair | None = None
    opened: AsyncExitStack = field(default_factory=AsyncExitStack)  # processes, and the connection
    is_closed: bool = False

    async def close(self) -> None:
        """End what was started for it, and the connection."""
        self.is_closed = True
        await self.opened.aclose()


class Pairs:
    """The pair in use, and one `init` at a time that changes it.

    A pair that was started here is stopped when another one takes its place. The configured
    orchestrator is only left, and come back to. `guards` are the options that say whom the
    services let in which are started here, and `shown` is what they are shown.
    """

    def __init__(
        self,
        configured: OutriderClient,
        guards: Sequence[str] = (),
        shown: ClientSecurity | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._configured = Pair(configured)
        self._configured.opened.push_async_callback(configured.close)
        self._guards = guards
        self._shown = shown or ClientSecurity()
        self._command = command
        self.now = self._configured
        """The pair in use."""
        # Of the `init` in flight, or of the last one.
        self._task: asyncio.Task[OutriderError | None] | None = None
        self._deciding = asyncio.Lock()
        self.failure: OutriderError | None = None
        """Why the last `init` came to nothing."""

    @property
    def is_loading(self) -> bool:
        """Whether an `init` is in progress."""
        return self._task is not None and not self._task.done()

    async def begin(self, wanted: WantedPair) -> asyncio.Task[OutriderError | None] | None:
        """Begin to put a pair in use; None if it is in use. The task returns what it failed of.

        Raises EngineBusy while another `init` is in progress, InvalidRequest for
        a draft without a target, and PeerUnavailable while the configured
        services load, so that nobody knows whether they are meant.
        """
        if self.is_loading or self._deciding.locked():
            raise EngineBusy("another init is in progress")
        async with self._deciding:
            if not wanted.model and not wanted.draft_model:
                self.failure = None
                return None
            status = await _status(self._configured)
            peers = [status.peer(role) for role in ("target", "draft")] if status else []
            for peer in peers:
                if peer and peer.model is None and peer.state is PeerState.LOADING:
                    raise PeerUnavailable(peer.detail)
            is_configured = status is not None and all(
                name in served for name, served in _asked(wanted, status)
            )
            is_in_use = not self.now.wanted if is_configured else await self._serves(wanted)
            self.failure = None
            if is_in_use:
                return None
            if not is_configured and not wanted.model:
                raise InvalidRequest("model", "must be named, too: a draft is not started alone")
            self._task = asyncio.create_task(self._put_in_use(None if is_configured else wanted))
            return self._task

    async def _serves(self, wanted: WantedPair) -> bool:
        """Return whether what was started here last is wanted again, and still there."""
        status = await _status(self.now) if self.now.wanted else None
        if status is None or not all(peer.state is PeerState.READY for peer in status.peers):
            return False
        named = all(name in served[-1:] for name, served in _asked(wanted, status))
        return named or wanted == self.now.wanted

    async def _put_in_use(self, wanted: WantedPair | None) -> OutriderError | None:
        """Use another pair, the configured one for None, and stop the one before."""
        try:
            before = self.now
            if wanted is None:
                await self._return()
                self.now = self._configured
            else:
                self.now = await self._started(wanted)
            if before is not self._configured:
                await before.close()
        except OutriderError as error:
            self.failure = error
        except TimeoutError:
            wrong = f"the models were not ready in {_LOADING_SECONDS:g} seconds"
            self.failure = DeadlinePassed(wrong)
        except Exception as error:
            self.failure = logs.internal_error(_LOGGER, error)
        if self.failure is not None:
            logs.warning(_LOGGER, "init failed", detail=str(self.failure))
        return self.failure

    async def _return(self) -> None:
        """Wait for the configured target. Raises PeerUnavailable."""
        detail = f"no orchestrator answers at {self._configured.client.address}"
        with suppress(TimeoutError):
            async with asyncio.timeout(_RETURN_SECONDS):
                while True:
                    status = await _status(self._configured)
                    target = status.peer("target") if status else None
                    if target is not None and target.state is PeerState.READY:
                        return
                    detail = target.detail if target else detail
                    await asyncio.sleep(_LOOK_SECONDS)
        raise PeerUnavailable(detail)

    async def _started(self, wanted: WantedPair) -> Pair:
        """Start services; raise ServiceStopped if one ends, InvalidConfig for an unfit draft."""
        async with AsyncExitStack() as stack, asyncio.timeout(_LOADING_SECONDS):
            words = ["--embeddings", *wanted.options]
            if wanted.alias:
                words.append(f"--alias={wanted.alias}")
            target = await self._start(stack, "target", _file(wanted.model), *words)
            children = [target]
            if wanted.draft_model:
                words = [*_BESIDE_THE_TARGET, *wanted.options]
                draft = await self._start(stack, "draft", _file(wanted.draft_model), *words)
                children.append(draft)
            addresses = [await watch(child.address(), children) for child in children]
            peers = [f"--{c.role}=plain://{at}" for c, at in zip(children, addresses, strict=True)]
            if not wanted.draft_model:
                peers.append("--no-draft")
            children.append(await self._start(stack, "orchestrator", *peers, *self._guards))
            address = await watch(children[-1].address(), children)
            client = OutriderClient(address, self._shown)
            stack.push_async_callback(client.close)
            await watch(_until_ready(client), children)
            pair = Pair(client, wanted, stack.pop_all())
        return pair

    async def _start(self, stack: AsyncExitStack, role: str, *words: str) -> Child:
        """Start a service; if it ends before it is stopped, say so in the log."""
        child = await Child.start(self._command, role, ANY_PORT, words, _pass_on)
        stack.push_async_callback(child.stop)

        async def log_end() -> None:
            logs.warning(_LOGGER, "service ended", detail=str(await child.end()))

        stack.callback(asyncio.create_task(log_end()).cancel)
        return child

    async def close(self) -> None:
        """Stop everything that was started here."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for pair in {self.now, self._configured}:
            await pair.close()


def _file(path: str) -> str:
    """Return the option of a model that a caller names: a file of this machine, none of the hub."""
    return f"--model={Path(path).absolute()}"


async def _until_ready(client: OutriderClient) -> None:
    """Wait until all models of an orchestrator can be used.

    Raises InvalidConfig for one that never can.
    """
    while True:
        peers = (await client.status()).peers
        for peer in peers:
            if peer.state is PeerState.REFUSED:
                name = "model" if peer.role == "target" else "draft_model"
                raise InvalidConfig(name, peer.detail)
        if all(peer.state is PeerState.READY for peer in peers):
            return
        await asyncio.sleep(_LOOK_SECONDS)


async def _status(pair: Pair) -> Status | None:
    """Return the state of an orchestrator; None if none answers."""
    try:
        return await pair.client.status()
    except OutriderError:
        return None


def _asked(wanted: WantedPair, status: Status) -> list[tuple[str, tuple[str, ...]]]:
    """Return each model that is asked for, with how that which is served may be called."""
    both = ((wanted.model, "target"), (wanted.draft_model, "draft"))
    return [(name, _names(status, role, name)) for name, role in both if name]


def _names(status: Status, role: str, wanted: str) -> tuple[str, ...]:
    peer = status.peer(role)
    if peer is None or peer.model is None:
        return ()
    by_file = model_name(wanted) == peer.model.name
    return (wanted, peer.model.name) if by_file else (peer.model.name,)


def model_name(path: str) -> str:
    """Return what a service names the model of a file."""
    return Path(path).name.removesuffix(".gguf")


def _pass_on(role: str, line: str) -> None:
    """Pass on what a service logs."""
    if line.startswith("{"):
        print(line, file=sys.stderr, flush=True)
    elif line:
        logs.warning(_LOGGER, f"{role} says", line=line)


def _read_text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_TEXT or "\0" in value:
        raise InvalidRequest(name, f"must be a text of at most {MAX_TEXT} characters")
    return value


def _read_number(name: str, value: Any) -> int | None:
    """Return a whole number; a command line has it as a text."""
    if value in (None, ""):
        return None
    try:
        if isinstance(value, bool | float):
            raise ValueError
        return int(value)
    except (TypeError, ValueError):
        raise InvalidRequest(name, "must be a whole number") from None
