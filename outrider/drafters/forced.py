"""Proposes what a grammar forces, in the tokens that are usual for it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.drafters.source import NOTHING, Proposal, confidence
from outrider.grammar.states import GrammarState, GrammarStates

_LONGEST_RUN = 256  # forced characters that are looked for at once
_TAIL = 8  # tokens before them that are tokenized with them
_USUAL, _CUT = 0.97, 0.6
"""The chance of a usual token, and of the last: it may be one with what is free to follow."""

TextOf = Callable[[int], bytes]
"""The bytes of a token, as the grammar reads them; empty for an end."""

Tokenize = Callable[[bytes], Sequence[int]]
"""The usual tokens of UTF-8 text; none as long as they are not known, then it is asked again."""


@dataclass(frozen=True, slots=True)
class GrammarPlace:
    """Where in a grammar a text has come to. A state of None is lost: then nothing is forced."""

    states: GrammarStates
    state: GrammarState | None
    half: bytes = b""
    """The bytes of a character that is not whole yet."""

    def after(self, text: bytes) -> GrammarPlace:
        """Return the place after more text."""
        whole, half = _whole_characters(self.half + text)
        state = self.state if whole is not None else None
        for char in whole or "":
            if state is None:
                break
            state = self.states.step(state, char)
        return GrammarPlace(self.states, state, half)

    def forced(self) -> tuple[str, bool]:
        """Return the characters that have to follow, and whether nothing may follow them."""
        run: list[str] = []
        state = None if self.half else self.state
        while state is not None and state.forced is not None and len(run) < _LONGEST_RUN:
            run.append(state.forced)
            state = self.states.step(state, state.forced)
        return "".join(run), state is not None and state.is_end


def _whole_characters(text: bytes) -> tuple[str | None, bytes]:
    """Return the characters, None if this is no UTF-8, and the bytes of one that is not whole."""
    try:
        return text.decode(), b""
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return None, b""
        return text[: error.start].decode(), text[error.start :]


class ForcedSource:
    """Proposes the usual tokens of what has to follow in a grammar, and the end where that has to.

    `states` may be shared by all texts of a grammar. The prompt is no part of what the grammar
    reads; its last tokens are only tokenized again with what follows them. Without `end_id` no end
    is proposed.
    """

    reads_prompt = False

    def __init__(
        self,
        states: GrammarStates,
        text_of: TextOf,
        tokenize: Tokenize,
        prompt: Sequence[int] = (),
        end_id: int | None = None,
    ) -> None:
        self._text_of = text_of
        self._tokenize = tokenize
        self._end_id = end_id
        self._place = GrammarPlace(states, states.start)
        self._tail = [*prompt[-_TAIL:]]
        self._known: Proposal | None = None  # all that is forced after the text; None: ask

    def append(self, token_ids: Sequence[int]) -> None:
        self._known = self._known and _behind(self._known, token_ids)
        self._place = self._place.after(self._said(token_ids))
        self._tail = [*self._tail, *token_ids[-_TAIL:]][-_TAIL:]

    def propose(self, count: int, after: Sequence[int] = ()) -> Proposal:
        if self._known is None:
            self._known = self._find(self._place, self._tail)
        known = self._known
        if after:
            known = known and _behind(known, after)
            if known is None:
                place = self._place.after(self._said(after))
                known = self._find(place, [*self._tail, *after][-_TAIL:])
        known = known or NOTHING
        return Proposal(known.token_ids[:count], known.confidences[:count])

    def _said(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(map(self._text_of, token_ids))

    def _find(self, place: GrammarPlace, tail: Sequence[int]) -> Proposal | None:
        """Return all that is forced at a place; None as long as its tokens are not known."""
        run, is_end = place.forced()
        token_ids = self._usual_tokens(tail, run.encode()) if run else []
        if token_ids is None:
            return None
        confidences = [_USUAL] * len(token_ids)
        if is_end and self._end_id is not None and (token_ids or not run):
            token_ids, confidences = [*token_ids, self._end_id], [*confidences, _USUAL]
        elif confidences and not is_end:
            confidences[-1] = _CUT
        return Proposal(token_ids, bytes(map(confidence, confidences)))

    def _usual_tokens(self, tail: Sequence[int], forced: bytes) -> list[int] | None:
        """Return the tokens of forced bytes; none where they are not to be had, None: not yet.

        Tokenized with what stands before. Where that would be usual in one token with the
        beginning, it already stands as it does, and what follows is tokenized by itself.
        """
        before = self._said(tail)
        for start in dict.fromkeys((before, b"")):
            token_ids = [*self._tokenize(start + forced)]
            if not token_ids:
                return None
            rest, length = len(token_ids), 0
            while rest and length < len(forced):
                rest -= 1
                length += len(self._text_of(token_ids[rest]))
            if self._said(token_ids[rest:]) == forced:
                return token_ids[rest:]
        return []


def _behind(proposal: Proposal, token_ids: Sequence[int]) -> Proposal | None:
    """Return what is left after tokens; None if that is nothing, or they are others."""
    count = len(token_ids)
    if count >= len(proposal.token_ids) or [*proposal.token_ids[:count]] != [*token_ids]:
        return None
    return Proposal(proposal.token_ids[count:], proposal.confidences[count:])
