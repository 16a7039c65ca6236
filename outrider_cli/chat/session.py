"""Carries out a chat: reads lines, asks for answers, shows them as they come."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import replace
from pathlib import Path

from outrider.client import CallFailed, Conversation, Event, FinishReason, OutriderClient, Status
from outrider.errors import InvalidRequest
from outrider.rpc.security import ANONYMOUS, ClientSecurity
from outrider_cli.chat.line_input import Keyboard, open_keyboard
from outrider_cli.chat.state import (
    COMMANDS,
    Act,
    AskModel,
    ChatState,
    Load,
    NotDone,
    Quit,
    Reply,
    Save,
    ShowStatistics,
    read_messages,
    write_messages,
)
from outrider_cli.generate.execute import wait_for_pair, wait_for_target
from outrider_cli.render import Transcript, Words
from outrider_cli.screen import Progress, Prose, Screen, note, open_screen, show_lines
from outrider_cli.services.local import LocalPlan, LocalServices, local_services
from outrider_cli.statistics import cut_lines, statistics_lines, table_lines
from outrider_cli.terminal import say

_CHATML_MARKS = ("<|im_start|>", "<|im_end|>")
_WHOLE = (FinishReason.END_OF_TEXT, FinishReason.STOP_SEQUENCE)

Show = Callable[[Event], None]


def chat_locally(talk: ChatState, plan: LocalPlan, history: Path | None) -> bool:
    """Chat with services of our own, which are gone when this returns; whether all went well."""
    return _chat(talk, Backend(plan=plan), history)


def chat_remotely(
    talk: ChatState, address: str, security: ClientSecurity, history: Path | None
) -> bool:
    """Chat with an orchestrator that is running; whether all went well."""
    return _chat(talk, Backend(address=address, security=security), history)


def _chat(talk: ChatState, partner: Backend, history: Path | None) -> bool:
    words = [f"/{name}" for name in COMMANDS]
    # The loop pauses while a pipe is read, so that Ctrl-C is never kept waiting.
    with asyncio.Runner() as runner, open_keyboard(runner, words, history) as keyboard:
        try:
            status = runner.run(partner.meet(talk.is_drafting))
            dialogue = ChatSession(talk, partner, runner, keyboard)
            dialogue.open(status)
            while dialogue.is_open:
                dialogue.step()
            return dialogue.went_well
        finally:
            runner.run(partner.leave())


class Backend:
    """The other side: an orchestrator, perhaps one of our own with its services."""

    def __init__(
        self,
        *,
        plan: LocalPlan | None = None,
        address: str = "",
        security: ClientSecurity = ANONYMOUS,
    ) -> None:
        self._plan = plan
        self._address = address
        self._security = security
        self._services: LocalServices | None = None
        self._client: OutriderClient | None = None
        self._stack = AsyncExitStack()
        self._has_lost_draft = False

    async def meet(self, speculates: bool) -> Status:
        """Return the status once there can be answers. Raises like `generate` does."""
        with Progress() as progress:
            if self._plan is None:
                return await self._meet_remotely(progress, speculates)
            return await self._meet_locally(self._plan, progress)

    async def _meet_locally(self, plan: LocalPlan, progress: Progress) -> Status:
        self._services = await self._stack.enter_async_context(local_services(plan))
        progress.say("starting the services")
        self._address = await self._services.start()
        return await self._services.watch(wait_for_pair(await self._connect(), progress))

    async def _meet_remotely(self, progress: Progress, speculates: bool) -> Status:
        status = await wait_for_target(await self._connect(), progress)
        progress.clear()
        if speculates and not status.speculating:
            note(f"without a draft model: {status.reason}")
        return status

    async def _connect(self) -> OutriderClient:
        client = OutriderClient(self._address, self._security)
        self._client = await self._stack.enter_async_context(client)
        return client

    async def leave(self) -> None:
        """Close the channel and stop services of our own."""
        await self._stack.aclose()

    async def status(self) -> Status:
        """Return how the orchestrator is now. Raises CallFailed."""
        assert self._client is not None
        return await self._client.status()

    async def stands_in(self, status: Status) -> bool:
        """Whether ChatML stands in for a template that the model does not have."""
        assert self._client is not None
        target = status.peer("target")
        if target is None or target.model is None or target.model.has_chat_template:
            return False
        # The operator may have given a template of another kind.
        prompt = await self._client.apply_template([{"role": "user", "content": "x"}])
        return all(mark in prompt for mark in _CHATML_MARKS)

    async def answer(self, talk: ChatState, question: str, show: Show) -> None:
        """Show the events of an answer. Raises CallFailed and ServiceStopped."""
        if self._services is None:
            await self._generate(talk, question, show)
            return
        await self._services.watch_without_draft(self._generate(talk, question, show))
        draft = self._services.draft
        if draft is not None and draft.ended and not self._has_lost_draft:
            note(await self.loss_of_draft())

    async def loss_of_draft(self) -> str:
        """Wait until a draft of our own ends, and return what to say of it, which is said once."""
        draft = self._services.draft if self._services is not None else None
        if draft is None or self._has_lost_draft:
            await asyncio.Event().wait()
        else:
            await draft.end()
            self._has_lost_draft = True
        return "the draft ended; answers continue without it"

    async def _generate(self, talk: ChatState, question: str, show: Show) -> None:
        assert self._client is not None
        while True:
            chat = talk.chat(question)
            prompt = await self._client.apply_template(chat)
            asked = replace(talk.options, prompt=prompt, conversation=Conversation(chat=chat))
            try:
                async with aclosing(self._client.generate(asked)) as events:
                    async for event in events:
                        show(event)
                return
            except CallFailed as error:
                forgotten = talk.forget() if error.reason == "PROMPT_TOO_LONG" else 0
                if not forgotten:
                    raise
                note(forgotten_line(forgotten))


class ChatSession:
    """Reads a line, does what it wants, and says what came of it."""

    def __init__(
        self, talk: ChatState, partner: Backend, runner: asyncio.Runner, keyboard: Keyboard
    ) -> None:
        self._talk = talk
        self._partner = partner
        self._runner = runner
        self._keyboard = keyboard
        self._screen = open_screen()
        self._answer: Screen = self._screen
        self._last: Transcript | None = None
        self._status: Status | None = None
        self.is_open = True
        self.went_well = True

    def open(self, status: Status) -> None:
        """Say once who answers."""
        self._status = status
        if self._runner.run(self._partner.stands_in(status)):
            note("the model has no chat template; ChatML stands in, which it may never have seen")
            stops = tuple(dict.fromkeys((*self._talk.options.stop_sequences, *_CHATML_MARKS)))
            self._talk.options = replace(self._talk.options, stop_sequences=stops)
        if self._keyboard.is_interactive:
            say(_names(status))
            say("/help lists the commands")

    def step(self) -> None:
        """Read one text and do what it wants. Raises ServiceStopped, which is the end."""
        drafted = self._talk.is_drafting
        try:
            line = self._keyboard.read(self._partner.loss_of_draft)
            act = Quit() if line is None else self._talk.take(line)
            if act is not None:
                self._do(act)
            if self._talk.is_drafting and not drafted:
                self._look_for_draft()
        except (NotDone, CallFailed, InvalidRequest) as error:
            self.went_well &= self._keyboard.is_interactive
            say(f"outrider: {error}")

    def _do(self, act: Act) -> None:
        match act:
            case AskModel(question):
                self._ask(question)
            case Reply(lines):
                for line in lines:
                    say(line)
            case Save(path, overwrites):
                messages = self._talk.all_messages()
                _write(path, write_messages(messages), overwrites)
                say(f"{len(messages)} messages are in {path}")
            case Load(path):
                messages = read_messages(_read(path))
                self._talk.replace_messages(messages)
                say(f"{len(messages)} messages from {path}")
            case ShowStatistics(all_of_them):
                self._show_statistics(all_of_them)
            case Quit():
                self.is_open = False

    def _look_for_draft(self) -> None:
        status = self._runner.run(self._partner.status())
        if not status.speculating:
            note(f"without a draft model: {status.reason}")

    # --- an answer ---

    def _ask(self, question: str) -> None:
        try:
            self._hear(question)
        except KeyboardInterrupt:
            say("(cut)")
            if not self._keyboard.is_interactive:
                raise
        if self._keyboard.is_interactive:
            say("")

    def _hear(self, question: str) -> None:
        """Show an answer as it comes, and keep as much of it as came."""
        transcript = Transcript()
        self._answer = Prose(self._screen) if sys.stdout.isatty() else self._screen

        def show(event: Event) -> None:
            transcript.add(event)
            self._show(event)

        try:
            self._runner.run(self._partner.answer(self._talk, question, show))
        finally:
            self._keep(question, transcript)
        self._say_end(transcript)

    def _show(self, event: Event) -> None:
        for words in Transcript.words(event):
            self._answer.show(words if self._talk.is_coloured else Words(words.text))

    def _keep(self, question: str, transcript: Transcript) -> None:
        """Put what came into the history, and the cursor below it."""
        finished, text = transcript.finished, transcript.text
        if transcript.started is not None:
            self._last = transcript
        if isinstance(self._answer, Prose):
            self._answer.flush()
        if text and not text.endswith("\n"):
            self._screen.show(Words("\n"))
        if finished is None and not text:
            self._talk.add_failure(question)
        else:
            is_cut = finished is None or finished.reason not in _WHOLE
            self._talk.add_answer(question, text, is_cut)

    def _say_end(self, transcript: Transcript) -> None:
        """Say how an answer ended, where that cannot be seen."""
        assert transcript.finished is not None
        reason = transcript.finished.reason
        if reason not in _WHOLE:
            say(f"(cut: {reason.value})")
        elif not transcript.text:
            say("(the answer is empty)")
        if reason is FinishReason.CONTEXT_FULL:
            self._make_room()

    def _make_room(self) -> None:
        """Forget old turns, so that /retry has more room than this answer had."""
        if self._talk.turn_count > 1:
            note(forgotten_line(self._talk.forget()))

    def _show_statistics(self, all_of_them: bool) -> None:
        last = self._last
        if last is None or self._status is None:
            raise NotDone("nothing has been answered yet")
        if last.finished is None:
            show_lines(self._screen, cut_lines(last))
            return
        with suppress(CallFailed):  # a draft may have come since
            self._status = self._runner.run(self._partner.status())
        lines = table_lines if all_of_them else statistics_lines
        show_lines(self._screen, lines(last, self._status))


def forgotten_line(count: int) -> str:
    """Return what to say when turns are left out."""
    turns = "turn is" if count == 1 else f"{count} turns are"
    return f"the context is full: the oldest {turns} kept, but not sent any more"


def _names(status: Status) -> str:
    models = {peer.role: peer.model for peer in status.peers if peer.model is not None}
    target, draft = models.get("target"), models.get("draft")
    name = target.name if target else "the target"
    by = draft.name if draft else target.own_draft if target else ""
    by = by or ("the text itself" if status.text_sources else "")
    return f"{name}, drafted by {by}" if by else f"{name} alone"


def _write(path: str, text: str, overwrites: bool) -> None:
    """Write a file, over an old one only if that is wanted. Raises NotDone."""
    try:
        with open(Path(path).expanduser(), "w" if overwrites else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise NotDone(f"there is a file {path}; /save! {path} writes over it") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise NotDone(f"cannot write {path}: {_why(error)}") from None


def _read(path: str) -> str:
    """Return a file's text. Raises NotDone."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise NotDone(f"{path} is not UTF-8 text") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise NotDone(f"cannot read {path}: {_why(error)}") from None


def _why(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
