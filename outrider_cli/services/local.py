"""Starts the three services as children of this process, and leaves none of them running."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from outrider.engine.gguf_check import is_head
from outrider.errors import InvalidConfig
from outrider.model_service.config import ModelOptions
from outrider.processes import ANY_PORT, GRACE_SECONDS, Child, OnLogLine, no_log, watch
from outrider_cli import COMMAND
from outrider_cli.options import arguments

T = TypeVar("T")

_PLAIN = "plain://"  # never TLS between processes of one machine


@dataclass(frozen=True, slots=True)
class HostedModel:
    """A model to host here."""

    model: Path
    options: ModelOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlan:
    """What to start: each model here, or reached at its address; no draft for the target alone."""

    target: HostedModel | str
    draft: HostedModel | str | None
    listen: str = ANY_PORT  # of the orchestrator
    orchestrator: tuple[str, ...] = ()  # more of its options
    target_words: tuple[str, ...] = ()  # more of the target's
    peer_token_file: Path | None = None  # what models want; None: a token of this run, or none
    grace_seconds: float = GRACE_SECONDS  # for texts in flight, when all of it is stopped
    own_draft: bool = True  # the target drafts with the draft's model, too, in its own process
    commands: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What runs a role, where that is not `COMMAND`."""

    @property
    def shared_words(self) -> Sequence[str]:
        """Of the orchestrator's options, those that target and draft are started with, too."""
        return [word for word in self.orchestrator if word.startswith("--traces=")]

    @property
    def drafts_in_target(self) -> bool:
        """Whether a target is started here that drafts with the draft's file, too."""
        names_it = any(word.startswith("--draft-model=") for word in self.own_draft_words)
        return names_it and isinstance(self.target, HostedModel)

    @property
    def own_draft_words(self) -> Sequence[str]:
        """The options that let the target draft, too: where both are here, with the same model.

        Else it does with the head in its file, if there is one. The model is not used from the CPU
        in the process of a target on a GPU: there both would wait for each other.
        """
        draft, target = self.draft, self.target
        if not self.own_draft:
            return ("--no-own-draft",)
        if not isinstance(draft, HostedModel):
            return ()
        if isinstance(target, HostedModel) and draft.options.leaves_gpu_to(target.options):
            return ()
        words = [f"--draft{word[1:]}" for word in arguments(draft.options)]
        words += [word for word in self.orchestrator if word == "--same-vocabulary"]
        return (f"--draft-model={draft.model}", *words)


class LocalServices:
    """Target, draft and orchestrator; the models on ports of the system's choice.

    The models want a token, which the orchestrator shows them: the plan's, or one of this run.
    """

    def __init__(self, plan: LocalPlan, folder: Path, on_log_line: OnLogLine) -> None:
        """`folder` is for the token of this run, and for its user alone."""
        self._plan = plan
        self._token_file = (plan.peer_token_file or folder / "token").resolve()
        self._token = secrets.token_hex()  # of this run
        self._on_log_line = on_log_line
        self.target: Child | None = None
        self.draft: Child | None = None
        self.orchestrator: Child | None = None
        self._draft_address = ""

    async def start(self) -> str:
        """Return the orchestrator's address; the models may still be loading."""
        plan, apart = self._plan, self._plan.draft
        is_head = isinstance(plan.draft, HostedModel) and _is_head(plan.draft.model)
        if is_head and plan.drafts_in_target:
            apart = None
        if isinstance(plan.target, HostedModel):
            words = (*plan.own_draft_words, *plan.target_words)
            self.target = await self._start_model("target", plan.target, more=words)
        if isinstance(apart, HostedModel):
            self.draft = await self._start_model("draft", apart)
        target, draft = await asyncio.gather(
            _address(self.target, plan.target), _address(self.draft, apart)
        )
        self._draft_address = draft.removeprefix(_PLAIN)
        peers = ("--target", target, *(("--draft", draft) if draft else ("--no-draft",)))
        words = (*peers, *plan.orchestrator)
        if plan.peer_token_file is not None or self.target or self.draft:
            words = (*words, f"--peer-token-file={self._token_file}")
        command = plan.commands.get("orchestrator", COMMAND)
        self.orchestrator = await Child.start(
            command, "orchestrator", plan.listen, words, self._on_log_line, plan.grace_seconds
        )
        return await self.watch(self.orchestrator.address())

    async def http_address(self) -> str:
        """Return where the orchestrator serves HTTP, which it was asked to do."""
        assert self.orchestrator is not None
        return await self.watch(self.orchestrator.address())

    async def _start_model(
        self, role: str, hosted: HostedModel, listen: str = ANY_PORT, more: Sequence[str] = ()
    ) -> Child:
        if self._plan.peer_token_file is None and not self._token_file.exists():
            # It may be gone when a draft starts again: systems delete old temporary files.
            self._token_file.parent.mkdir(mode=0o700, exist_ok=True)
            self._token_file.write_text(self._token)
        words = (
            f"--model={hosted.model}",
            f"--token-file={self._token_file}",
            *arguments(hosted.options),
            *self._plan.shared_words,
            *more,
        )
        plan = self._plan
        command = plan.commands.get(role, COMMAND)
        return await Child.start(
            command, role, listen, words, self._on_log_line, plan.grace_seconds
        )

    async def restart_draft(self) -> None:
        """Start the draft again where it was."""
        assert isinstance(self._plan.draft, HostedModel)
        self.draft = await self._start_model("draft", self._plan.draft, self._draft_address)

    async def watch(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; raise ServiceStopped as soon as any service ends."""
        return await watch(work, self._children())

    async def watch_without_draft(self, work: Coroutine[Any, Any, T]) -> T:
        """As `watch`, for work that continues without the draft."""
        return await watch(work, [c for c in self._children() if c is not self.draft])

    @property
    def pids(self) -> dict[str, int]:
        """The processes that run, by role."""
        return {child.role: child.pid for child in self._children()}

    async def stop(self) -> None:
        """Stop all services."""
        await asyncio.gather(*(child.stop() for child in self._children()))

    def _children(self) -> list[Child]:
        return [c for c in (self.target, self.draft, self.orchestrator) if c is not None]


@asynccontextmanager
async def local_services(
    plan: LocalPlan, on_log_line: OnLogLine = no_log
) -> AsyncIterator[LocalServices]:
    """Give services that are stopped at the end; `on_log_line` gets the lines of their logs."""
    with TemporaryDirectory(prefix="outrider-") as folder:  # for this user alone
        services = LocalServices(plan, Path(folder), on_log_line)
        try:
            yield services
        finally:
            await services.stop()


def _is_head(path: Path) -> bool:
    """Return whether a draft's file is a head, before two processes load it and refuse it both."""
    try:
        return is_head(path)
    except InvalidConfig as error:
        raise InvalidConfig("draft-model", str(error).partition(": ")[2]) from None


async def _address(child: Child | None, place: HostedModel | str | None) -> str:
    """Return where a peer is, for the orchestrator; empty when there is none."""
    if child is not None:
        return _PLAIN + await child.address()
    return place if isinstance(place, str) else ""
