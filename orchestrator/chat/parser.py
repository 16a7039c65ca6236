"""Reads what a model writes: its thoughts, its answer and its tool calls, as they come. Pure.

It does not matter how the text is cut. What looks like a call and is none is text, as it was
written.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import regex

from orchestrator.chat.events import Content, Mark, Thought, TurnEvent
from orchestrator.chat.format import HEADER, MARK, CallFormat, ChatFormat, Style
from orchestrator.chat.reader import ChatText, Steps, ignore
from orchestrator.chat.tool_calls import CallParser
from orchestrator.chat.value_readers import Schema

_FENCE = regex.compile(r" {0,3}(```|~~~)")
_RECIPIENT = regex.compile(r"to=(?:functions\.)?([\w.-]+)")
_NO_TOOL = ("assistant", "user", "self", "all")


class ChatParser:
    """Divides a growing text into content, thoughts and calls of the `tools`.

    `tools` are the schemas of arguments by the tool's name. `prompt` is what the prompt holds of
    the turn already, such as the mark that opens a thought. The format's `controls` mean something
    only as a Mark, and their letters are text. With `single`, calls after the first are dropped.
    """

    def __init__(
        self,
        form: ChatFormat,
        tools: Mapping[str, Schema],
        prompt: str = "",
        *,
        single: bool = False,
    ) -> None:
        self._form, self._tools = form, tools
        self._reader = ChatText(form.controls)
        calls = form.calls if form.calls and tools else CallFormat(Style.JSON)
        show = partial(self._show, Content)
        self._calls = CallParser(self._reader, calls, tools, self._emit, show, single=single)
        self._is_bare = calls.bare
        self._events: list[TurnEvent] = []
        self._held: list[TurnEvent] | None = None  # in place of `_events` while nothing is certain
        self._space = ""  # is shown before more text only
        self._skips_space = False  # nothing but white space came since the last mark
        self._line = ""  # how the last line of the content begins
        self._tick_count = 0  # backticks in it
        self._is_fenced = self._has_shown = self._is_within = self._is_flowing = False
        self._compile()
        self._steps: Steps = self._messages() if form.headers else self._turn()
        self._go_on(self._reader.encoded(prompt))
        self._space, self._is_within = "", False

    def _compile(self) -> None:
        form, reader = self._form, self._reader
        triggers = self._calls.triggers
        end = form.end if reader.encoded(form.end) != form.end else ""
        answer = form.content if MARK.search(form.content) else ""
        closing = {"calls": triggers, "drop": form.end_content, "end": end}
        self._marks = reader.any_of(think=form.think, content=form.content, **closing)
        closing = {"drop": [form.end_think, answer], "calls": triggers, "end": end}
        self._thought_marks = reader.any_of(**closing)
        self._content = reader.loose(form.content)
        close = form.calls.close.strip() if form.calls else ""
        stops = [form.end_think, form.end, close, *MARK.findall(form.turn)]
        self._stops = reader.any_of(drop=stops)
        self._header_marks = reader.any_of(header=HEADER, drop=stops)

    def add(self, piece: str | Mark) -> list[TurnEvent]:
        """Return what is certain now."""
        return self._go_on(self._reader.encoded(piece.name) if isinstance(piece, Mark) else piece)

    def finish(self, *, is_cut: bool = False) -> list[TurnEvent]:
        """Return the rest. `is_cut`: a limit ended the text; a call that has begun is dropped."""
        self._reader.is_ended, self._reader.is_cut = True, is_cut
        return self._go_on("")

    def _go_on(self, text: str) -> list[TurnEvent]:
        reader = self._reader
        if self._is_flowing:
            reader.text, reader.at = reader.text[reader.at :], 0
        reader.text += text
        next(self._steps, None)
        events, self._events = self._events, []
        return events

    # --- showing ---

    def _emit(self, event: TurnEvent) -> None:
        (self._events if self._held is None else self._held).append(event)

    def _show(self, kind: type[Content] | type[Thought], text: str) -> None:
        text = self._space + self._reader.decoded(text)
        if self._skips_space:
            text = text.lstrip()
        shown = text.rstrip()
        if kind is Content and (shown or self._is_within):  # only line ends wait
            shown += text[len(shown) :].partition("\n")[0]
        self._space = text[len(shown) :]
        if not shown:
            return
        self._skips_space = False
        if kind is Content:
            self._has_shown = self._is_within = True
            for i, part in enumerate(shown.split("\n")):
                if i:  # a line has ended before it
                    self._is_fenced ^= bool(_FENCE.match(self._line))
                    self._line, self._tick_count = "", 0
                self._line = (self._line + part)[:8]
                self._tick_count += part.count("`")
        self._emit(kind(shown))

    def _is_quoted(self) -> bool:
        """Say whether the content is within a code fence, or a quotation in its line."""
        is_fenced = self._is_fenced ^ bool(_FENCE.match(self._line))
        return is_fenced or ("\n" not in self._space and self._tick_count % 2 == 1)

    def _pass_mark(self, found: Any) -> None:
        self._reader.at = found.end()
        self._space, self._skips_space, self._is_within = "", True, False

    def _show_mark(self, kind: type[Content] | type[Thought], found: Any) -> None:
        self._show(kind, found[0])
        self._reader.at = found.end()

    # --- a turn ---

    def _turn(self) -> Steps:
        reader, has_called = self._reader, False
        while True:
            if self._is_bare and not self._has_shown:
                place = reader.at
                first = yield from reader.blank()
                is_call = first in ("{", "[") and (yield from self._calls.calls())
                reader.at = reader.at if is_call else place
                has_called |= is_call
            found = yield from self._flow(Content, self._marks)
            kind = found.lastgroup if found else ""
            if kind in ("", "end"):
                break
            if kind == "calls":
                named = self._form.content and (yield from reader.take(self._content))
                if named:
                    self._pass_mark(named)
                elif self._is_quoted() or not (yield from self._calls.calls()):
                    self._show_mark(Content, found)
                else:
                    has_called, self._is_within = True, False
            elif kind == "think" and self._is_within and not reader.has_controls(found[0]):
                self._show_mark(Content, found)  # a word of the text
            else:
                self._pass_mark(found)
                if kind == "think":
                    yield from self._think()
        if not found and not has_called and self._space and not self._skips_space:
            self._emit(Content(self._space))

    def _flow(self, kind: type[Content] | type[Thought], pattern: Any) -> Steps:
        """Show text of a kind up to a mark, which is returned; what is read is forgotten."""
        self._is_flowing = True
        found = yield from self._reader.until(pattern, partial(self._show, kind))
        self._is_flowing = False
        return found

    def _think(self) -> Steps:
        while found := (yield from self._flow(Thought, self._thought_marks)):
            if found.lastgroup != "calls":
                self._pass_mark(found)
                return
            if not (yield from self._calls_that_end_a_thought()):
                self._show_mark(Thought, found)

    def _calls_that_end_a_thought(self) -> Steps:
        """Read calls after which the text ends: models forget to close the thought before."""
        reader, self._held = self._reader, []
        place, space, count = reader.at, self._space, self._calls.count
        is_call = yield from self._calls.calls()
        yield from reader.blank()
        held, self._held = self._held, None
        if is_call and reader.is_at_end and not reader.is_cut:
            self._events += held
            self._space, self._skips_space = "", True
            return True
        reader.at, self._space, self._calls.count = place, space, count
        return False

    def _messages(self) -> Steps:
        """Read messages with headers, which name a channel or a recipient."""
        reader = self._reader
        thought = self._form.think.replace(HEADER, "").split(">")[-1].strip()
        while True:
            start = reader.at
            found = yield from reader.until(self._header_marks, ignore)
            header = reader.decoded(reader.text[start : reader.at]).strip()
            header = header.removeprefix("assistant").strip()
            if found is None or found.lastgroup == "drop":
                if header and not (found is None and reader.is_cut):
                    self._show(Content, header)
                if found is None:
                    return
                reader.at = found.end()
                continue
            self._pass_mark(found)
            to = _RECIPIENT.search(header)
            if to and to[1] in self._tools:
                yield from self._calls.call_of(to[1], start)
                yield from reader.until(self._stops, ignore)
            elif thought in header.rsplit("<|channel|>")[-1]:
                yield from self._flow(Thought, self._stops)
            else:
                if to and to[1] not in _NO_TOOL:
                    self._show(Content, reader.text[start : reader.at])
                yield from self._flow(Content, self._stops)
            self._space = ""
