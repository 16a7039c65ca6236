"""What `report` adds to a stream: every token with its origin, and every round. Pure.

Our page reads it, of /completion and of /v1/chat/completions.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from gateway.accumulator import Accumulator, CommittedToken, committed_tokens
from outrider.messages import FinishReason
from outrider.response import Delta, Event, Finished, RoundReport

LEAST_LOGPROB = -9999.0
"""Stands for the logarithm of no probability, which JSON cannot hold."""

STOP_TYPES = {
    FinishReason.END_OF_TEXT: "eos",
    FinishReason.STOP_SEQUENCE: "word",
}
"""Why a text ended, in llama-server's words; "limit" for all other reasons."""


def finite(value: float) -> float:
    """Return a log probability that JSON can hold."""
    return max(value, LEAST_LOGPROB)


class TokenReports:
    """Reports on the completions that are gathered there.

    `clock` measures the seconds between events, which a round's report holds.
    """

    def __init__(self, gathering: Accumulator, clock: Callable[[], float]) -> None:
        self._gathering = gathering
        self._clock = clock
        self._last = clock()  # the time of the last event
        self._decoders = [_utf8_decoder() for _ in gathering.completions]

    def of(self, prompt: int, event: Event) -> dict[str, Any]:
        """Return the tokens and the round of an event that was gathered already."""
        before, self._last = self._last, self._clock()
        if not isinstance(event, Delta):
            return {}
        index = self._gathering.index(prompt, event)
        read_count = len(self._gathering.prompts[prompt].prompt_token_ids)
        held_count = len(self._gathering.completions[index].token_ids)
        first = read_count + held_count - len(event.token_ids)
        return _report(event, first, self._last - before, self._decoders[index])

    def ending(self, prompt: int, event: Finished) -> dict[str, Any]:
        """Return why a completion ended, its seed, and what it took."""
        return {
            "stop_type": STOP_TYPES.get(event.reason, "limit"),
            "seed": self._gathering.prompts[prompt].seed,
            "statistics": asdict(event.statistics),
        }


def _utf8_decoder() -> codecs.IncrementalDecoder:
    """Return what turns the bytes of a completion's tokens into the characters they complete."""
    return codecs.getincrementaldecoder("utf-8")("replace")


def _report(
    delta: Delta,
    first: int,
    seconds: float,
    decoder: codecs.IncrementalDecoder,
) -> dict[str, Any]:
    """Return the tokens and the round of a delta; the first token is the text's number `first`."""
    its = delta.report
    number = its.round if its is not None else 0
    sources, lines = (its.sources, its.draft_lines) if its is not None else ((), ())

    def who(i: int) -> dict[str, Any]:
        """Return who proposed a draft token, and of which runner-up line it is, if of one."""
        shape: dict[str, Any] = {"source": sources[i]} if i < len(sources) else {}
        return shape | ({"line": lines[i]} if i < len(lines) and lines[i] else {})

    report: dict[str, Any] = {
        "tokens": [
            # A round's accepted tokens are the first of its draft.
            _reported(token, first + i, number, decoder.decode(token.text), who(i))
            for i, token in enumerate(committed_tokens(delta))
        ]
    }
    if its is not None:
        report["round"] = _round(its, seconds)
    return report


def _lines(report: RoundReport) -> dict[str, list[int]]:
    """Return which line of the draft each token of a round is of, where not all are its first."""
    return {"lines": list(report.draft_lines)} if report.draft_lines else {}


def _reported(
    token: CommittedToken, position: int, round_number: int, text: str, who: dict[str, Any]
) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "id": token.token_id,
        "text": text,
        "origin": token.origin,
        "position": position,
        "round": round_number,
        **(who if token.origin == "drafted" else {}),
    }
    if token.logprob is not None:
        shape["logprob"] = finite(token.logprob.value)
    return shape


def _round(report: RoundReport, seconds: float) -> dict[str, Any]:
    draft = [_decode(token.text) for token in report.draft]
    accepted = report.accepted_token_count
    return {
        "round": report.round,
        "draft": draft,
        "sources": list(report.sources),
        **_lines(report),
        "accepted": accepted,
        "rejected": draft[accepted] if accepted < len(draft) else None,
        "target": _decode(report.target.text),
        "draft_end": report.draft_end.name.lower(),
        "seconds": seconds,
    }


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "replace")
