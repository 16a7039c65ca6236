"""Reads the calls in a model's text, by the format that its template shows. Pure."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping
from typing import Any

import regex

from orchestrator.chat.events import Arguments, CallBegun, CallEnded, TurnEvent
from orchestrator.chat.format import KEY, MARK, CallFormat, Style
from orchestrator.chat.reader import NEVER, ChatText, Malformed, Steps, ignore
from orchestrator.chat.value_readers import (
    MAX_DEPTH,
    NO_JSON,
    Schema,
    Show,
    ValueReader,
    as_json,
    escaped,
    member,
    read_json,
    types_of,
)

_NAME = regex.compile(r"[\w.-]+")
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = (regex.compile(regex.escape(each)) for each in "{}[]")
_COLON, _SEPARATOR, _NULL = map(regex.compile, (":", "[,;]", "null"))
_SELF_CLOSING = regex.compile(r'"?\s*/>')


class CallParser:
    """Reads calls of the `tools`, and reports them; with `single`, the first one alone.

    `show` gets the text of a call that was reported and turned out to be none.
    """

    def __init__(
        self,
        reader: ChatText,
        form: CallFormat,
        tools: Mapping[str, Schema],
        report: Callable[[TurnEvent], None],
        show: Show,
        *,
        single: bool,
    ) -> None:
        self._reader, self._form, self._tools = reader, form, tools
        self._report_all, self._show, self._single = report, show, single
        quote = form.quote if MARK.match(form.quote) else ""
        self._values = ValueReader(reader, quote, is_loose=form.style is Style.KEYED)
        reads = {
            Style.JSON: self._json_call,
            Style.NAMED: self._named_call,
            Style.KEYED: self._keyed_call,
            Style.PARAMETERS: self._parameter_call,
        }
        self._read = reads[form.style]
        begin, end = form.begin.rstrip(), form.end.lstrip()
        is_list = begin.endswith("[")
        self._brackets = ([_OPEN_LIST], [_CLOSE_LIST]) if is_list else ([], [])
        begin, end = begin.removesuffix("["), end.removeprefix("]")
        self._begin, self._ending, self._end = (
            reader.loose(begin),
            reader.loose(end),
            reader.each_of(end),
        )
        self._has_section = bool(self._end and MARK.search(begin) and form.open)
        opens = [form.open]
        close = reader.each_of(form.close)
        if form.style is Style.PARAMETERS:  # models leave out the lines around the tag of the name
            opens.append(form.open.split("\n")[-1])
            close = [reader.loose(line) for line in form.close.split("\n") if line]
        self._open = _either(map(reader.loose, filter(str.strip, opens)))
        self._close = close or [NEVER]
        self._next = _either([self._open, self._ending])
        self._after = _either([*self._close[1:], self._open, *self._end])
        self._after_name = reader.loose(form.after_name)
        self._parameter = reader.loose(form.parameter.open)
        self._after_key = reader.loose(form.parameter.after_key)
        self.triggers = [
            line
            for line in (begin, form.open.split("\n")[0].rstrip(), opens[-1])
            if MARK.search(line) or "<" in line
        ]
        """What may begin a call within a text."""
        self._tool: Schema = {}
        self._has_begun = False
        self.count = 0
        """The calls that were reported."""

    def calls(self) -> Steps:
        """Read calls, whole or broken; return whether there were any, else nothing is read."""
        reader = self._reader
        start = place = reader.at
        count, noise = 0, ""
        is_inside = bool(self._begin.pattern) and bool((yield from reader.take(self._begin)))
        is_inside = is_inside and self._has_section
        yield from reader.optional(self._brackets[0])
        while True:
            if is_inside:
                before = reader.at
                yield from reader.until(self._next, ignore)
                noise = reader.text[before : reader.at].strip()
            outcome = yield from self._call(reader.at if count else start)
            if outcome is None:
                break
            if not outcome:
                return True
            count, place = count + 1, reader.at
            yield from reader.optional([_SEPARATOR])
        if count and not is_inside:
            reader.at = place
        elif not count and (noise or not is_inside or not (yield from reader.take(self._ending))):
            reader.at = start
            return False
        yield from reader.optional([*self._brackets[1], *self._end])
        return True

    def _call(self, shown_from: int) -> Steps:
        """Read a call; return whether it is whole, or None where there is none to read.

        One that breaks off is shown from `shown_from` on.
        """
        reader, start = self._reader, self._reader.at
        self._has_begun, self._values.depth = False, 0
        try:
            yield from reader.blank()
            yield from (reader.take if self._form.bare else reader.expect)(self._open)
            yield from self._read()
        except Malformed:
            if reader.is_cut_here and (self._has_begun or not self._form.bare):
                return False
            if self._has_begun:
                self.break_off(shown_from)
                return False
            reader.at = start
            return None
        self._report(CallEnded())
        return True

    def call_of(self, name: str, start: int) -> Steps:
        """Read the rest of a call that a header at `start` has named."""
        try:
            if self._form.style is Style.NAMED:
                self._begin_call(name)
                yield from self._values.object(self._argue)
                self._report(CallEnded())
            else:
                yield from self.calls()
        except Malformed:
            if not self._reader.is_cut_here:
                self.break_off(start)

    def break_off(self, start: int) -> None:
        """Tell that the call is none, and show its text."""
        self._report(CallEnded(is_sound=False))
        self.count -= 1
        self._show(self._reader.text[start : self._reader.at])

    def _begin_call(self, name: str, id_: str = "") -> None:
        if name not in self._tools:
            raise Malformed
        self._has_begun = True
        self.count += 1
        self._tool = self._tools[name]
        self._report(CallBegun(name, id_))

    def _report(self, event: TurnEvent) -> None:
        if not (self._single and self.count > 1):
            self._report_all(event)

    def _argue(self, text: str) -> None:
        self._report(Arguments(self._reader.decoded(text)))

    # --- the styles ---

    def _json_call(self) -> Steps:
        """Read {"name": "f", "arguments": {...}} in any order, or {"f": {...}}."""
        reader, form, name, early = self._reader, self._form, "", ""
        yield from reader.blank()
        yield from reader.expect(_OPEN)
        while not (yield from self._values.closes(_CLOSE)):
            key = yield from self._values.text()
            yield from reader.blank()
            yield from reader.expect(_COLON)
            if form.name_key and key in (form.name_key, "name"):
                name = yield from self._values.text()
                if early:
                    self._begin_call(name)
                    self._argue(early)
            elif form.name_key and key not in (form.arguments_key, "arguments", "parameters"):
                yield from self._values.value(ignore)
            elif form.name_key and not name:
                parts: list[str] = []
                yield from self._json_arguments(parts.append)
                early = "".join(parts)
            else:
                self._begin_call(name or key)
                yield from self._json_arguments(self._argue)
        if not self._has_begun:
            if form.bare:
                raise Malformed
            self._begin_call(name)
            self._argue("{}")
        yield from reader.optional(self._close)

    def _json_arguments(self, show: Show) -> Steps:
        """Read an object, or one in a JSON text, as some models write it."""
        first = yield from self._reader.blank()
        if first == '"':
            inner = read_json((yield from self._values.text()) or "{}")
            if not isinstance(inner, dict):
                raise Malformed
            show(json.dumps(inner, ensure_ascii=False))
        elif first == "n":
            yield from self._reader.expect(_NULL)
            show("{}")
        else:
            yield from self._values.object(show)

    def _named(self) -> Steps:
        """Read the name of a tool and what is between it and the arguments, and begin its call."""
        reader = self._reader
        yield from reader.blank()
        name = (yield from reader.word(_NAME)).removeprefix("functions.")
        if name not in self._tools:
            raise Malformed
        yield from reader.blank()
        after = yield from reader.take(_SELF_CLOSING)
        after = after or (yield from reader.expect(self._after_name))
        id_ = after.groupdict().get("id") or ""
        if id_ and self._form.open.endswith("functions."):
            id_ = f"functions.{name}:{id_}"
        self._begin_call(name, id_)

    def _named_call(self) -> Steps:
        yield from self._named()
        yield from self._values.object(self._argue)
        yield from self._reader.optional(self._close)

    def _keyed_call(self) -> Steps:
        yield from self._named()
        equals, closes = self._form.parameter.after_key, self._form.close[0]
        yield from self._values.members(self._argue, equals, closes)
        yield from self._reader.optional(self._close[1:])

    def _parameter_call(self) -> Steps:
        reader, comma = self._reader, ""
        yield from self._named()
        self._argue("{")
        while not reader.text.endswith("/>", 0, reader.at):
            yield from reader.blank()
            if (yield from reader.take(self._close[0])):
                break
            ahead = yield from (reader.expect if self._form.close else reader.take)(self._parameter)
            if not ahead:  # nothing closes the call
                break
            key: list[str] = []
            found = yield from reader.until(self._after_key, key.append)
            if found is None:
                raise Malformed
            reader.at = found.end()
            name = "".join(key).strip()
            if self._form.parameter.after_key.startswith('"'):
                name = html.unescape(name)
            self._argue(f"{comma}{json.dumps(name, ensure_ascii=False)}: ")
            yield from self._parameter_value(name, found.groupdict().get("type"))
            comma = ", "
        self._argue("}")
        yield from reader.optional(self._close[1:])

    def _parameter_value(self, key: str, type_: str | None) -> Steps:
        """Read a value up to its closing mark, or to what can only stand after it."""
        reader, parameter, line = self._reader, self._form.parameter, ""
        if parameter.after_key.endswith("\n") and (yield from reader.peek()) == "\n":
            reader.at, line = reader.at + 1, r"\n"
        done = reader.loose(parameter.close, key).pattern
        unclosed = [rf"\n\s*{self._parameter.pattern}"] if line else []
        unclosed += [line + self._close[0].pattern]
        stop = regex.compile(rf"{line}(?P<done>{done})|{'|'.join(unclosed)}")
        types = types_of(member(self._tool, "properties", dict).get(key), self._tool)
        is_text = type_ == parameter.string_type if type_ is not None else types == {"string"}
        parts: list[str] = []
        show = self._argue_escaped if is_text else parts.append
        self._argue('"' if is_text else "")
        while not (found := (yield from reader.until(stop, show))) or not found["done"]:
            if found is None:
                raise Malformed
            if (yield from self._is_unclosed(found)):
                break
            show(found[0])
            reader.at = found.end()
        reader.at = found.end() if found["done"] else reader.at
        if KEY in parameter.close:
            parts = [json.dumps(self._elements("".join(parts), MAX_DEPTH), ensure_ascii=False)]
        self._argue('"' if is_text else as_json("".join(parts), types))

    def _argue_escaped(self, text: str) -> None:
        if text:
            self._argue(escaped(text))

    def _is_unclosed(self, found: Any) -> Steps:
        """Say whether a mark ends an argument that was not closed, or is part of its text."""
        reader = self._reader
        place, reader.at = reader.at, found.end()
        is_next = bool(self._parameter.fullmatch(found[0].lstrip()))
        is_end = not (yield from reader.blank()) or (yield from reader.take(self._after))
        reader.at = place
        return is_next or is_end

    def _elements(self, text: str, depth_left: int) -> Any:
        """Return what an argument says in which objects and lists are marked like arguments."""
        if not depth_left:
            raise Malformed
        parameter, found = self._form.parameter, []
        opens = regex.compile(rf"\s*{self._parameter.pattern}([\w.-]+){self._after_key.pattern}")
        while start := opens.match(text):
            close = self._reader.loose(parameter.close, start[1]).pattern
            again = rf"{self._parameter.pattern}{regex.escape(start[1])}{self._after_key.pattern}"
            either = regex.compile(rf"(?P<open>{again})|{close}")
            depth, at, stop = 1, start.end(), len(text)
            while depth and (mark := either.search(text, at)):
                depth, at, stop = depth + (1 if mark["open"] else -1), mark.end(), mark.start()
            found.append((start[1], self._elements(text[start.end() : stop], depth_left - 1)))
            text = "" if depth else text[at:]
        if not found:
            value = read_json(text)
            return text if value is NO_JSON else value
        is_list = {name for name, _ in found} == {"item"}
        return [value for _, value in found] if is_list else dict(found)


def _either(patterns: Any) -> Any:
    """Return a pattern of any of some patterns."""
    return regex.compile("|".join(dict.fromkeys(each.pattern for each in patterns if each.pattern)))
