"""A text that is asked for again after its replica was lost, and what of it is new. Pure.

The same seed, prompt and target give the same text, so a repetition begins with what the client
has seen. That is compared, and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from outrider.v1 import orchestrator_service_pb2 as messages

T = TypeVar("T")


class Differs(Exception):
    """The repetition is another text, so it cannot continue what was seen."""


@dataclass(slots=True)
class Brought:
    """What came of one completion, of its first to its last token so far."""

    token_ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)  # characters; names of control tokens as one
    prompt_logprob_count: int = 0
    is_finished: bool = False


class SeenText:
    """What a client has seen of a generation, over one attempt or several at writing it."""

    def __init__(self) -> None:
        self._started: messages.GenerationStarted | None = None
        self._seen: dict[int, Brought] = {}
        self._again: dict[int, Brought] = {}  # what the present attempt has brought

    @property
    def finished_count(self) -> int:
        """Completions of which the client has seen the end."""
        return sum(each.is_finished for each in self._seen.values())

    def repeat(self, request: messages.GenerateRequest) -> messages.GenerateRequest:
        """Begin another attempt: return what asks for the same text, of the same model."""
        self._again = {}
        same = messages.GenerateRequest()
        same.CopyFrom(request)
        if self._started is not None:
            same.seed = self._started.seed
            same.model.identity = self._started.model_identity
            same.model.name = self._started.model_name
        return same

    def take(self, response: messages.GenerateResponse) -> messages.GenerateResponse | None:
        """Return what of a response the client has not seen, None if nothing. Raises Differs."""
        event = response.WhichOneof("event")
        if event == "started":
            return response if self._is_first(response.started) else None
        seen = self._seen.setdefault(response.choice_index, Brought())
        again = self._again.setdefault(response.choice_index, Brought())
        if event == "finished":
            if len(again.token_ids) < len(seen.token_ids):
                raise Differs
            is_first, seen.is_finished = not seen.is_finished, True
            return response if is_first else None
        return response if _cut(response.delta, seen, again) else None

    def _is_first(self, started: messages.GenerationStarted) -> bool:
        """Return whether nothing was seen before. Raises Differs for another prompt or model."""
        if self._started is None:
            self._started = started
            return True
        before = self._started
        if (before.prompt_token_ids, before.model_identity) != (
            started.prompt_token_ids,
            started.model_identity,
        ):
            raise Differs
        return False


def _cut(delta: messages.GenerationDelta, seen: Brought, again: Brought) -> bool:
    """Cut off a delta what was seen; return whether anything is left. Raises Differs."""
    known = _overlap(list(delta.token_ids), seen.token_ids, again.token_ids)
    is_bare = not (delta.token_ids or delta.pieces or delta.prompt_logprobs)  # a report alone
    is_new = known < len(delta.token_ids)
    is_new |= is_bare and len(again.token_ids) == len(seen.token_ids)
    for values in (delta.token_ids, delta.origins, delta.token_texts, delta.logprobs):
        del values[:known]
    pieces = list(delta.pieces)
    del delta.pieces[:]
    for piece in pieces:
        units = [piece.text] if piece.control else [*piece.text]
        known = _overlap(units, seen.text, again.text)
        if known < len(units):
            piece.text = "".join(units[known:])
            delta.pieces.append(piece)
    again.prompt_logprob_count += len(delta.prompt_logprobs)
    new = max(0, again.prompt_logprob_count - seen.prompt_logprob_count)
    del delta.prompt_logprobs[: max(0, len(delta.prompt_logprobs) - new)]
    seen.prompt_logprob_count += len(delta.prompt_logprobs)
    return bool(is_new or delta.pieces or delta.prompt_logprobs)


def _overlap(values: Sequence[T], seen: list[T], again: list[T]) -> int:
    """Take in what an attempt brings next; return how much of it was seen. Raises Differs."""
    begin = len(again)
    again += values
    known = max(0, min(len(values), len(seen) - begin))
    if list(values[:known]) != seen[begin : begin + known]:
        raise Differs
    seen += values[known:]
    return known
