"""A text that grows while it is read, and patterns of the marks in it. Pure.

What reads it are generators: they yield where they need more of the text, so that they are written
as if all of it were there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import regex

from orchestrator.chat.format import ID, KEY, MARK, TYPE

Steps = Generator[None, None, Any]
Pattern = Any  # of the package `regex`, whose partial matches say that more text may fit

NEVER: Pattern = regex.compile(r"(?!)")

_FIRST_MARK = 0xF0000
"""Control tokens stand in the text as characters of a private plane, from this one on."""


class Malformed(Exception):
    """What is read is not what it should be."""


class ChatText:
    """The text so far, and how far it is read. The names of `controls` are single characters in it.

    `is_cut`: a limit ended the text, and not the model.
    """

    def __init__(self, controls: Sequence[str]) -> None:
        self._controls = {name: chr(_FIRST_MARK + i) for i, name in enumerate(controls)}
        self.text = ""
        self.at = 0
        self.is_ended = self.is_cut = False

    @property
    def is_at_end(self) -> bool:
        """Whether all is read that there will be."""
        return self.is_ended and self.at == len(self.text)

    @property
    def is_cut_here(self) -> bool:
        """Whether a limit ended the text where it is read."""
        return self.is_cut and self.is_at_end

    def encoded(self, text: str) -> str:
        """Return a text with the names of control tokens as their characters."""
        for name, character in self._controls.items():
            text = text.replace(name, character)
        return text

    def decoded(self, text: str) -> str:
        """Return a text with the characters of control tokens as their names."""
        for name, character in self._controls.items():
            text = text.replace(character, name)
        return text

    def has_controls(self, text: str) -> bool:
        """Say whether there are control tokens in an encoded text."""
        return any(ord(character) >= _FIRST_MARK for character in text)

    # --- patterns ---

    def loose(self, text: str, key: str = "") -> Pattern:
        """Return a pattern of a text of the format, in which white space may differ."""
        text = self.encoded(text)
        parts = regex.findall(rf"{MARK.pattern}|\w+|\S", text)
        pattern = r"\s*".join(map(regex.escape, parts))
        # An id has a mark of its own where it stands first; models leave out both.
        marked = regex.match(rf"({MARK.pattern}|[\U000F0000-\U000F00FF]){ID}", text)
        if marked:
            pattern = pattern.replace(one := rf"{regex.escape(marked[1])}\s*{ID}", f"(?:{one})?")
        pattern = regex.sub(r"functions\\s\*\\\.$", r"(?:functions\\.)?", pattern)
        pattern = pattern.replace(ID, r"(?P<id>[\w.:-]*)", 1).replace(TYPE, r"(?P<type>\w*)")
        if parts and parts[-1][-1].isalnum() and text[-1].isspace():
            pattern += r"\s"
        return regex.compile(pattern.replace(KEY, regex.escape(key)))

    def any_of(self, **texts: str | Iterable[str]) -> Pattern:
        """Return a pattern of any of the texts, each kind a group."""
        kinds = {
            kind: [given] if isinstance(given, str) else given for kind, given in texts.items()
        }
        groups = {
            kind: "|".join(self.loose(each).pattern for each in given if each.strip())
            for kind, given in kinds.items()
        }
        found = "|".join(f"(?P<{kind}>{group})" for kind, group in groups.items() if group)
        return regex.compile(found) if found else NEVER

    def each_of(self, text: str) -> list[Pattern]:
        """Return a pattern for each mark or word of a text."""
        words = regex.findall(rf"{MARK.pattern}|[^\s<]+?(?=<|\s|$)|\S", text)
        return [self.loose(word) for word in words]

    # --- moving on ---

    def peek(self) -> Steps:
        """Return the next character; empty at the end."""
        while self.at >= len(self.text) and not self.is_ended:
            yield
        return self.text[self.at : self.at + 1]

    def blank(self) -> Steps:
        """Pass over white space; return the character after it."""
        while (character := (yield from self.peek())).isspace():
            self.at += 1
        return character

    def take(self, pattern: Pattern) -> Steps:
        """Pass over what fits a pattern, and return the match; None if the text does not fit."""
        while found := pattern.match(self.text, self.at, partial=not self.is_ended):
            if not found.partial:
                self.at = found.end()
                return found
            yield
        return None

    def expect(self, pattern: Pattern) -> Steps:
        """Pass over what fits a pattern, and return the match. Raises Malformed."""
        found = yield from self.take(pattern)
        if found is None:
            if pattern.match(self.text, self.at, partial=True):
                self.at = len(self.text)  # it may have been cut there
            raise Malformed
        return found

    def word(self, pattern: Pattern) -> Steps:
        """Pass over a word and return it; it ends where something else follows."""
        while True:
            found = pattern.match(self.text, self.at)
            is_open = found.end() == len(self.text) if found else self.at == len(self.text)
            if not is_open or self.is_ended:
                break
            yield
        if found is None:
            raise Malformed
        self.at = found.end()
        return found[0]

    def optional(self, patterns: Iterable[Pattern]) -> Steps:
        """Pass over those that follow one another, with what white space is between them."""
        for pattern in patterns:
            place = self.at
            yield from self.blank()
            if not (yield from self.take(pattern)):
                self.at = place

    def until(self, pattern: Pattern, show: Callable[[str], None]) -> Steps:
        """Show the text up to what fits a pattern, which is returned; None at the end."""
        while True:
            found = pattern.search(self.text, self.at, partial=not self.is_ended)
            stop = found.start() if found else len(self.text)
            if self.is_cut and not found:  # perhaps within a mark of several tokens
                begun = pattern.search(self.text, self.at, partial=True)
                if begun and self.has_controls(self.text[begun.start() :]):
                    stop = begun.start()
            show(self.text[self.at : stop])
            self.at = stop
            if found and not found.partial:
                return found
            if self.is_ended:
                self.at = len(self.text)
                return None
            yield


def ignore(text: str) -> None:
    """Show nothing."""
