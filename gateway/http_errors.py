"""What an error becomes in HTTP: a status, and a body of the kind that the route speaks. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.errors import Draining, EngineBusy, InvalidRequest, OutriderError

_STATUSES = {
    "INVALID_ARGUMENT": 400,
    "OUT_OF_RANGE": 400,
    "FAILED_PRECONDITION": 400,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    # A model service turned us away; the client's own key is checked before.
    "UNAUTHENTICATED": 502,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
_REASON_STATUSES = {
    # Nothing is wrong with the request: asked again, it is answered by the model of now.
    "MODEL_CHANGED": 503,
}
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "invalid_request_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


@dataclass(frozen=True, slots=True)
class HttpFailure:
    """An error on its way to a client. `field` names the request's field at fault.

    Only Anthropic's bodies have a place for `request_id`; it is in the headers of all.
    """

    status: int
    message: str
    field: str | None = None
    reason: str | None = None
    metadata: Mapping[str, str] | None = None
    retry_seconds: float | None = None
    request_id: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """The headers that go with it."""
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        if self.retry_seconds is None:
            return {}
        return {"Retry-After": str(max(1, math.ceil(self.retry_seconds)))}


def failure_of(error: OutriderError) -> HttpFailure:
    """Return the error as a client gets it."""
    return HttpFailure(
        status=_REASON_STATUSES.get(error.reason, _STATUSES.get(error.status, 500)),
        message=str(error),
        field=error.field if isinstance(error, InvalidRequest) else None,
        reason=error.reason,
        metadata=error.metadata,
        retry_seconds=_retry_seconds(error),
    )


def _retry_seconds(error: OutriderError) -> float | None:
    if isinstance(error, Draining):
        return 1.0  # by then the service's place may be taken
    return error.retry_seconds if isinstance(error, EngineBusy) else None


def openai_body(failure: HttpFailure) -> dict[str, Any]:
    """Return the error as OpenAI's clients read it."""
    too_long = failure.reason == "PROMPT_TOO_LONG"
    code = "context_length_exceeded" if too_long else failure.reason and failure.reason.lower()
    message = failure.message
    if too_long and failure.metadata:
        # The words by which LiteLLM knows that another model may have room.
        most = failure.metadata["maximumTokenCount"]
        message = f"This model's maximum context length is {most} tokens: {message}"
    return {
        "error": {
            "message": message,
            "type": _type(failure),
            "param": failure.field,
            "code": "invalid_api_key" if failure.status == 401 else code,
            **_excess(failure),
        }
    }


def llama_body(failure: HttpFailure) -> dict[str, Any]:
    """Return the error as llama-server's clients read it."""
    excess = _excess(failure)
    message = failure.message
    if excess:
        # The words by which llama-server's clients know it.
        message += ": it exceeds the available context size"
    return {
        "error": {
            "code": failure.status,
            "message": message,
            "type": _type(failure),
            **excess,
        }
    }


def anthropic_body(failure: HttpFailure) -> dict[str, Any]:
    """Return the error as Anthropic's clients read it."""
    message = failure.message
    if failure.reason == "PROMPT_TOO_LONG" and failure.metadata:
        message = "prompt is too long: {promptTokenCount} tokens > {maximumTokenCount} maximum"
        message = message.format_map(failure.metadata)
    kind = _ANTHROPIC_TYPES.get(failure.status, "api_error")
    error = {"type": kind, "message": message, **_excess(failure)}
    return {"type": "error", "error": error, "request_id": failure.request_id or None}


def ollama_body(failure: HttpFailure) -> dict[str, Any]:
    """Return the error as Ollama's clients read it."""
    return {"error": failure.message}


def _excess(failure: HttpFailure) -> dict[str, Any]:
    """Return llama-server's counts of a prompt that is too long, on any route."""
    if failure.reason != "PROMPT_TOO_LONG" or not failure.metadata:
        return {}
    return {
        "n_prompt_tokens": int(failure.metadata["promptTokenCount"]),
        "n_ctx": int(failure.metadata["contextTokenCount"]),
    }


def _type(failure: HttpFailure) -> str:
    if _excess(failure):
        return "exceed_context_size_error"
    return _TYPES.get(failure.status, "server_error")
