"""Follows the events of generations, and finds which tokens belong to the shown text. Pure.

A stop sequence holds text back, so tokens arrive before their text. Tokens that
are reported come out together with the beginning of their text, and those of a
stop sequence never.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from orchestrator.chat.events import Mark
from outrider.messages import FinishReason
from outrider.response import Delta, Event, Finished, Logprob, Started, Statistics


@dataclass(frozen=True, slots=True)
class CommittedToken:
    """A token of a completion; `text` is what it adds."""

    token_id: int
    text: bytes
    origin: str
    logprob: Logprob | None


@dataclass(frozen=True, slots=True)
class Addition:
    """What a message adds: text to show, marks in it, and the tokens whose text is shown by now."""

    pieces: tuple[str | Mark, ...]
    tokens: tuple[CommittedToken, ...]

    @property
    def text(self) -> str:
        """The text to show."""
        return text_of(self.pieces)


@dataclass(slots=True)
class Completion:
    """One completion as far as it has come."""

    pieces: list[str | Mark] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    shown: list[CommittedToken] = field(default_factory=list)
    finished: Finished | None = None
    _held: deque[tuple[int, CommittedToken]] = field(default_factory=deque)
    _shown_bytes: int = 0
    _token_bytes: int = 0

    @property
    def text(self) -> str:
        """The text so far."""
        return text_of(self.pieces)

    def add(self, delta: Delta) -> Addition:
        """Take in what a round brought."""
        self.token_ids += delta.token_ids
        for token in committed_tokens(delta):
            self._held.append((self._token_bytes, token))
            self._token_bytes += len(token.text)
        pieces = tuple(Mark(each.text) if each.control else each.text for each in delta.pieces)
        self.pieces += pieces
        self._shown_bytes += len(text_of(pieces).encode())
        return Addition(pieces, self._release())

    def finish(self, finished: Finished) -> Addition:
        """Take in the end; what is held belongs to the text unless a stop sequence cut it."""
        self.finished = finished
        is_cut = finished.reason is FinishReason.STOP_SEQUENCE
        return Addition((), () if is_cut else self._show(token for _, token in self._held))

    def _release(self) -> tuple[CommittedToken, ...]:
        released = []
        while self._held:
            start, token = self._held[0]
            if start + min(1, len(token.text)) > self._shown_bytes:
                break
            released.append(token)
            self._held.popleft()
        return self._show(released)

    def _show(self, tokens: Iterable[CommittedToken]) -> tuple[CommittedToken, ...]:
        shown = tuple(tokens)
        self.shown += shown
        return shown


def text_of(pieces: Iterable[str | Mark]) -> str:
    """Return the text without marks."""
    return "".join(piece for piece in pieces if isinstance(piece, str))


def committed_tokens(delta: Delta) -> list[CommittedToken]:
    """Return the tokens of a delta."""
    of_each = zip(delta.token_ids, delta.token_texts, delta.origins, strict=True)
    return [
        CommittedToken(
            token_id, text, origin.value, delta.logprobs[i] if i < len(delta.logprobs) else None
        )
        for i, (token_id, text, origin) in enumerate(of_each)
    ]


@dataclass(slots=True)
class Accumulator:
    """The completions of one HTTP request: `choice_count` of each of its prompts.

    `is_predicted`: the request says what it expects of them.
    """

    prompt_count: int
    choice_count: int
    is_predicted: bool = False
    prompts: dict[int, Started] = field(default_factory=dict)
    completions: list[Completion] = field(init=False)

    def __post_init__(self) -> None:
        self.completions = [Completion() for _ in range(self.prompt_count * self.choice_count)]

    def index(self, prompt: int, event: Event) -> int:
        """Return the index of an event's completion among all of them."""
        choice = 0 if isinstance(event, Started) else event.choice
        return prompt * self.choice_count + choice

    def add(self, prompt: int, event: Event) -> Addition | None:
        """Take in an event; None for one that starts. Raises ModelChanged."""
        if isinstance(event, Started):
            self._note_start(prompt, event)
            return None
        completion = self.completions[self.index(prompt, event)]
        return completion.add(event) if isinstance(event, Delta) else completion.finish(event)

    def _note_start(self, prompt: int, started: Started) -> None:
        """Take in how a prompt was read. Raises ModelChanged where others are by another model."""
        for other in self.prompts.values():
            other.model.check(started.model)
        self.prompts[prompt] = started

    @property
    def started(self) -> list[Started]:
        """How the prompts were read, in their order."""
        return [self.prompts[i] for i in sorted(self.prompts)]

    @property
    def model(self) -> str:
        """The name of the model that writes; once a prompt was read."""
        return next(iter(self.prompts.values())).model.name

    @property
    def statistics(self) -> list[Statistics]:
        """What each completion that is finished took."""
        return [c.finished.statistics for c in self.completions if c.finished is not None]
