"""Every error that Outrider raises on purpose: who can act, and how it looks on the wire.

OutriderError
+ InvalidRequest        the caller's code or its user: fix the value
  + PromptTooLong       the user: shorten the prompt
  + InvalidConfig       the operator: fix an option or a file
  + NotFound            the caller: what is named is not there
  + KeyReused           the caller: send a new key with another request
+ PositionPastCache     the orchestrator: send the span again from `held`
+ ContextExhausted      the orchestrator: end the generation
+ EngineBusy            the caller: wait and try again
  + LimitReached        the caller: wait, or have the token's limit raised
+ RoundSuperseded       the orchestrator: a later round took this one's place
+ SessionTaken          an older stream: a newer attempt owns the session
+ VocabularyMismatch    the operator: pair other models
+ ModelChanged          the caller: start again, with the model that is there now
+ Unauthenticated       the operator: fix a token or a certificate
+ PermissionDenied      the operator: use another token, or give this one the right
+ PeerUnavailable       the caller: try again later
+ ServiceStopped        the operator: the message has the service's own last words
+ DeadlinePassed        the caller: allow more time
+ Draining              the caller: try another replica
+ ReaderStalled         the caller: read what was asked for
+ StateUnavailable      the operator: mend the disk that what is to last is kept on
+ DecodeFailed          a bug in the engine, or a broken model
"""

from __future__ import annotations

from typing import Self

RETRY_SECONDS = 1.0
"""s; after which a caller may ask again where nothing says when there will be room."""


class OutriderError(Exception):
    """The base; never raised itself. `metadata` holds every variable of the message."""

    reason = "INTERNAL"
    status = "INTERNAL"

    def __init__(self, message: str, **metadata: str | int | float) -> None:
        super().__init__(message)
        self.metadata = {key: str(value) for key, value in metadata.items()}


class InvalidRequest(OutriderError):
    """A value is outside its documented range. `field` names it."""

    reason = "INVALID_REQUEST"
    status = "INVALID_ARGUMENT"

    def __init__(self, field: str, message: str, **metadata: str | int | float) -> None:
        super().__init__(f"{field}: {message}", field=field, **metadata)
        self.field = field

    def named(self, field: str) -> Self:
        """Return the same refusal for a caller who knows the field by another name."""
        message, own = str(self), f"{self.field}: "
        if message.startswith(own):
            message = f"{field}: {message.removeprefix(own)}"
        renamed = type(self).__new__(type(self))
        OutriderError.__init__(renamed, message, **{**self.metadata, "field": field})
        renamed.field = field
        return renamed


class PromptTooLong(InvalidRequest):
    """The prompt of `token_count` tokens leaves no room in the context: it may have `maximum`.

    `at_least` says that it was refused before it was tokenized: the count is a lower bound.
    """

    reason = "PROMPT_TOO_LONG"

    def __init__(
        self, token_count: int, maximum: int, context: int, at_least: bool = False
    ) -> None:
        bound = "at least " if at_least else ""
        OutriderError.__init__(
            self,
            f"prompt too long ({bound}{token_count} tokens, max {maximum})",
            field="prompt",
            promptTokenCount=token_count,
            maximumTokenCount=maximum,
            contextTokenCount=context,
        )
        self.field = "prompt"


class InvalidConfig(InvalidRequest):
    """An option or a file of this process is unusable."""

    reason = "INVALID_CONFIG"
    status = "FAILED_PRECONDITION"


class NotFound(InvalidRequest):
    """What the request names is not there, or not any more."""

    reason = "NOT_FOUND"
    status = "NOT_FOUND"


class KeyReused(InvalidRequest):
    """An idempotency key came with another request than before."""

    reason = "IDEMPOTENCY_KEY_REUSED"

    def __init__(self, field: str) -> None:
        super().__init__(field, "was used for another request: send a new key")


class PositionPastCache(OutriderError):
    """The span starts after the last token the session holds. Send it from `held`."""

    reason = "POSITION_PAST_CACHE"
    status = "OUT_OF_RANGE"

    def __init__(self, position: int, held: int) -> None:
        super().__init__(
            f"The span starts at {position}; the session holds {held} tokens.",
            cachedTokenCount=held,
        )
        self.held = held


class ContextExhausted(OutriderError):
    """The tokens do not fit the session's context of `capacity` tokens."""

    reason = "CONTEXT_FULL"
    status = "OUT_OF_RANGE"

    def __init__(self, token_count: int, capacity: int) -> None:
        super().__init__(
            f"{token_count} tokens do not fit a context of {capacity}.",
            contextTokenCount=capacity,
        )
        self.capacity = capacity


class EngineBusy(OutriderError):
    """No sequence or no queue place is free. Try again after `retry_seconds`."""

    reason = "ENGINE_BUSY"
    status = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, retry_seconds: float = RETRY_SECONDS) -> None:
        super().__init__(message, retrySeconds=retry_seconds)
        self.retry_seconds = retry_seconds


class LimitReached(EngineBusy):
    """The caller's token may have `maximum` of `limit`, a key of its table in the tokens' file."""

    reason = "LIMIT_REACHED"

    def __init__(self, limit: str, maximum: int, retry_seconds: float) -> None:
        what = limit.replace("_", " ")
        OutriderError.__init__(
            self,
            f"this token may have {maximum} {what}: try again in {retry_seconds:.1f} s",
            limit=limit,
            maximum=maximum,
            retrySeconds=retry_seconds,
        )
        self.retry_seconds = retry_seconds


class ReaderStalled(OutriderError):
    """A stream's reader took nothing for `seconds`, so the stream ended."""

    reason = "READER_STALLED"
    status = "RESOURCE_EXHAUSTED"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"nothing of the stream was read for {seconds:g} s", seconds=seconds)


class RoundSuperseded(OutriderError):
    """A later, contradicting round arrived before this one was decoded."""

    reason = "ROUND_SUPERSEDED"
    status = "ABORTED"


class SessionTaken(OutriderError):
    """A newer attempt owns the session; this stream is over."""

    reason = "SESSION_TAKEN"
    status = "ABORTED"


class VocabularyMismatch(OutriderError):
    """The two models of a pair cannot share token ids."""

    reason = "VOCABULARY_MISMATCH"
    status = "FAILED_PRECONDITION"


class ModelChanged(OutriderError):
    """The service hosts another model than the one that the caller began with."""

    reason = "MODEL_CHANGED"
    status = "FAILED_PRECONDITION"

    def __init__(self, begun: str, hosted: str) -> None:
        super().__init__(
            f"the model changed: this was begun with {begun}, the service now hosts {hosted}",
            begunModel=begun,
            hostedModel=hosted,
        )


class Unauthenticated(OutriderError):
    """One side does not show the other what it demands: a token, or a certificate."""

    reason = "UNAUTHENTICATED"
    status = "UNAUTHENTICATED"


class PermissionDenied(OutriderError):
    """The caller is known, and its token is not for this."""

    reason = "PERMISSION_DENIED"
    status = "PERMISSION_DENIED"


class PeerUnavailable(OutriderError):
    """A model service did not answer until the deadline."""

    reason = "PEER_UNAVAILABLE"
    status = "UNAVAILABLE"


class ServiceStopped(OutriderError):
    """A service that was started here ended by itself; the message has its own last words."""

    reason = "SERVICE_STOPPED"
    status = "UNAVAILABLE"


class DeadlinePassed(OutriderError):
    """The request's time is over, though the models work."""

    reason = "DEADLINE_PASSED"
    status = "DEADLINE_EXCEEDED"


class Draining(OutriderError):
    """The server is stopping."""

    reason = "DRAINING"
    status = "UNAVAILABLE"


class StateUnavailable(OutriderError):
    """What is to outlive the process cannot be written, or read again. Try again later."""

    reason = "STATE_UNAVAILABLE"
    status = "UNAVAILABLE"


class DecodeFailed(OutriderError):
    """llama_decode failed for a reason other than room."""

    reason = "DECODE_FAILED"
    status = "INTERNAL"
