"""Answers JSON-RPC 2.0: bytes in, bytes out, for any bytes. Pure.

The calls of a batch run one after the other, in their order: who starts, polls
and cancels in one batch means that order, and the library before this one knew
no other. Calls that should run at the same time are sent separately.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from outrider.errors import InvalidRequest, OutriderError
from outrider.json_text import TooManyValues, parse

Params = list[Any] | dict[str, Any]
Method = Callable[[Params], Awaitable[Any]]
"""Takes the parameters as they were sent, {} for none, and returns what JSON can hold."""

Report = Callable[[str, Exception], str]
"""Notes what a method, by its name, failed with; returns an id to find it by."""

Beside = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls what takes long where it keeps nobody waiting, and returns its result."""

MAX_BODY_BYTES = 2 * 2**20  # a prompt of 128k tokens takes 1 MB as ids
MAX_BATCH = 64
MAX_DEPTH = 128
MAX_NUMBER = 1e300
"""Every number is nearer to zero, so that an integer fits a float, too."""

CODES = {
    "INVALID_REQUEST": -32602,
    "INTERNAL": -32603,
    "ENGINE_BUSY": -32001,
    "PEER_UNAVAILABLE": -32002,
    "DRAINING": -32003,
    "DEADLINE_PASSED": -32004,
    "PROMPT_TOO_LONG": -32005,
    "CONTEXT_FULL": -32006,
    "VOCABULARY_MISMATCH": -32007,
    "UNAUTHENTICATED": -32008,
    "INVALID_CONFIG": -32009,
    "SESSION_TAKEN": -32010,
    "ROUND_SUPERSEDED": -32011,
    "POSITION_PAST_CACHE": -32012,
    "DECODE_FAILED": -32013,
    "NOT_FOUND": -32014,
    "SERVICE_STOPPED": -32015,
    "MODEL_CHANGED": -32016,
    "READER_STALLED": -32017,
    "LIMIT_REACHED": -32018,
    "PERMISSION_DENIED": -32019,
    "STATE_UNAVAILABLE": -32020,
    "IDEMPOTENCY_KEY_REUSED": -32021,
}
"""The code of each reason in outrider.errors. Clients rely on them: add, never change."""

OTHER_CODE = -32000
"""The code of a reason that has none of its own, such as the name of a gRPC status."""

_PARSE_ERROR = (-32700, "Parse error")
_INVALID_REQUEST = (-32600, "Invalid Request")
_METHOD_NOT_FOUND = (-32601, "Method not found")
_INTERNAL_ERROR = (-32603, "Internal error")

_SURROGATE = re.compile("[\ud800-\udfff]")


async def answer(
    body: bytes,
    methods: Mapping[str, Method],
    report: Report,
    max_bytes: int = MAX_BODY_BYTES,
    beside: Beside | None = None,
) -> bytes | None:
    """Return the answer to a request or a batch, None where there is nothing to answer.

    Notifications have run when this returns. An OutriderError of a method is
    answered with the code of its reason, any other exception with an internal
    error that holds nothing but the id of its report. Raises nothing itself.
    With `beside` the body is read where that says.
    """
    read = functools.partial(_read, body, max_bytes)
    try:
        request = await beside(read) if beside else read()
    except _Refusal as refusal:
        return _failure(None, refusal)
    if not isinstance(request, list):
        return await _answer_one(request, methods, report)
    answers = [await _answer_one(each, methods, report) for each in request]
    shown = [each for each in answers if each is not None]
    return b"[%b]" % b",".join(shown) if shown else None


def one_object(function: Callable[[Mapping[str, Any]], Awaitable[Any]]) -> Method:
    """Return the method that hands its parameters to `function` by name.

    The object with the names may also be the only positional parameter, and is
    then also taken as JSON text, as the library before this one took it. The
    method raises InvalidRequest for anything else.
    """

    @functools.wraps(function)
    async def method(params: Params) -> Any:
        return await function(_by_name(params))

    return method


class _Refusal(Exception):
    """Becomes an error object."""

    def __init__(
        self, code: int, message: str, reason: str = "", metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.error: dict[str, Any] = {"code": code, "message": message}
        if reason:
            self.error["data"] = {"reason": reason, "metadata": metadata or {}}


# --- one call ---


async def _answer_one(request: Any, methods: Mapping[str, Method], report: Report) -> bytes | None:
    """Return the answer to what should be a request, None if it is a notification."""
    if not _is_request(request):
        return _failure(_find_id(request), _Refusal(*_INVALID_REQUEST))
    call_id, name = request.get("id"), request["method"]
    try:
        result = await _call(methods, name, request.get("params", {}))
        reply = _encode({"jsonrpc": "2.0", "result": result, "id": call_id})
    except _Refusal as refusal:
        reply = _failure(call_id, refusal)
    except Exception as error:
        metadata = {"errorId": report(name, error)}
        reply = _failure(call_id, _Refusal(*_INTERNAL_ERROR, "INTERNAL", metadata))
    return reply if "id" in request else None


async def _call(methods: Mapping[str, Method], name: str, params: Params) -> Any:
    if name not in methods:
        raise _Refusal(*_METHOD_NOT_FOUND)
    try:
        return await methods[name](params)
    except OutriderError as error:
        raise _refusal_of(error) from error


def _refusal_of(error: OutriderError) -> _Refusal:
    code = CODES.get(error.reason, OTHER_CODE)
    return _Refusal(code, str(error), error.reason, error.metadata)


def _is_request(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("jsonrpc") == "2.0"
        and isinstance(value.get("method"), str)
        and isinstance(value.get("params", {}), (dict, list))
        and _is_id(value.get("id"))
    )


def _is_id(value: Any) -> bool:
    return value is None or type(value) in (str, int, float)  # True is an int, but no id


def _find_id(value: Any) -> Any:
    """Return the id of what is otherwise no request; None if it has no proper one."""
    found = value.get("id") if isinstance(value, dict) else None
    return found if _is_id(found) else None


def _by_name(params: Params) -> Mapping[str, Any]:
    values = params if isinstance(params, list) else [params]
    if len(values) > 1:
        raise InvalidRequest("params", f"must be one object, not {len(values)} values")
    value = values[0] if values else {}
    if isinstance(value, str):
        try:
            value = _parse(value)
        except _Refusal as refusal:
            raise InvalidRequest("params", f"is not JSON text: {refusal}") from refusal
    if not isinstance(value, dict):
        raise InvalidRequest("params", "must be an object")
    return value


# --- JSON ---


def _read(body: bytes, max_bytes: int) -> Any:
    """Return the value of a body; a list in it is a batch of a proper length."""
    if len(body) > max_bytes:
        raise _too_many("BODY_TOO_LARGE", "bytes", len(body), max_bytes)
    try:
        value = _parse(body.decode())
    except UnicodeDecodeError:
        raise _Refusal(*_PARSE_ERROR) from None
    if value == []:
        raise _Refusal(*_INVALID_REQUEST)
    if isinstance(value, list) and len(value) > MAX_BATCH:
        raise _too_many("BATCH_TOO_LONG", "calls", len(value), MAX_BATCH)
    return value


def _parse(text: str) -> Any:
    """Return the value of a JSON text, every part of which can be encoded again."""
    try:
        value = parse(text, _distinct)
        _check(value, MAX_DEPTH)
        return value
    except json.JSONDecodeError:
        raise _Refusal(*_PARSE_ERROR) from None
    except RecursionError:
        reason, message = "NESTED_TOO_DEEPLY", f"something is more than {MAX_DEPTH} levels deep"
    except UnicodeEncodeError:
        reason, message = "LONE_SURROGATE", "a text holds half a surrogate pair"
    except TooManyValues as error:
        reason, message = "TOO_MANY_VALUES", f"the body {error}"
    except ValueError:  # also Python's own, for more digits than it converts
        reason, message = "NUMBER_TOO_LARGE", f"a number is not nearer to 0 than {MAX_NUMBER}"
    raise _Refusal(_PARSE_ERROR[0], message, reason)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Readers differ about which of two equal names counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Refusal(_PARSE_ERROR[0], "an object has a name twice", "DUPLICATE_NAME")
    return found


def _check(value: Any, room: int) -> None:
    if isinstance(value, (int, float)):  # first, for a prompt may be 100k of them
        if not abs(value) < MAX_NUMBER:  # nor is NaN, which Python takes for JSON
            raise ValueError
    elif isinstance(value, str):
        value.encode()
    elif isinstance(value, (dict, list)):
        if not room:
            raise RecursionError
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            _check(part, room - 1)


def _too_many(reason: str, what: str, count: int, maximum: int) -> _Refusal:
    metadata = {"count": str(count), "maximum": str(maximum)}
    message = f"too many {what} ({count}, max {maximum})"
    return _Refusal(_INVALID_REQUEST[0], message, reason, metadata)


def _failure(call_id: Any, refusal: _Refusal) -> bytes:
    return _encode({"jsonrpc": "2.0", "error": refusal.error, "id": call_id})


def _encode(value: Any) -> bytes:
    """Return the JSON text of a value; a lone surrogate in it becomes U+FFFD."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _SURROGATE.sub("\ufffd", text).encode()
