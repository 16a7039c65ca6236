"""Reads and writes large JSON beside the event loop, so that nobody else's tokens wait for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from fastapi._compat import ModelField
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gateway.access_log import note_route
from gateway.body_fields import MOST_DEPTH
from outrider.json_text import parse

P = ParamSpec("P")
Item = TypeVar("Item")

LARGE_BYTES = 64 * 1024
"""What is read and checked in C within some 5 ms, for any content."""

BESIDE = ThreadPoolExecutor(1, "large-body")
"""Reads one large body after the other: several threads would keep the loop waiting in turn."""


async def beside(work: Callable[[], Item]) -> Item:
    """Return what `work` with a large body returns; it has the thread for itself."""
    return await asyncio.get_running_loop().run_in_executor(BESIDE, work)


class JsonRoute(APIRoute):
    """A route that reads and checks large bodies in a thread, and says which one it is."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        field, path = self.body_field, self.path

        async def handle_any(request: Request) -> Response:
            note_route(path)
            return await handle(request)

        if field is None:
            return handle_any

        async def handle_json(request: Request) -> Response:
            note_route(path)
            request = _JsonRequest(request.scope, request.receive)
            with suppress(ClientDisconnect):  # FastAPI meets it again, and ends the request
                await request.read_large(field)
            return await handle(request)

        return handle_json


class _JsonRequest(Request):
    """`_checked`: what a large body became, so that FastAPI finds it read and checked."""

    _checked: Any = None

    async def read_large(self, field: ModelField) -> None:
        body = await self.body()
        if len(body) > LARGE_BYTES:
            self._checked = await beside(partial(read, body, field))

    async def json(self) -> Any:
        return await super().json() if self._checked is None else self._checked


def read(body: bytes, field: ModelField) -> Any:
    """Return the model that a JSON text becomes. Raises RequestValidationError."""
    try:
        value = parse(body.decode(json.detect_encoding(body)))
    except json.JSONDecodeError as error:
        message = f"the body is not JSON: {error.msg} at character {error.pos}"
        raise _refusal(error.pos, message) from None
    except RecursionError:
        raise _refusal(0, f"the body is nested deeper than {MOST_DEPTH}") from None
    except ValueError as error:
        raise _refusal(0, f"the body {error}") from None
    checked, errors = field.validate(value, loc=("body",))
    if errors:
        raise RequestValidationError(errors)
    return checked


def _refusal(position: int, message: str) -> RequestValidationError:
    return RequestValidationError(
        [{"type": "json_invalid", "loc": ("body", position), "msg": message}]
    )


ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
"""Writes every answer, whole or an event of a stream."""


async def written(answer: Callable[P, Any], /, *arguments: P.args, **options: P.kwargs) -> Response:
    """Return the response that holds, as JSON, what `answer` returns; it is called in a thread."""

    def write() -> bytes:
        # Piece by piece, in Python: json.dumps holds the interpreter until it is done.
        return "".join(ENCODER.iterencode(answer(*arguments, **options))).encode()

    return Response(await asyncio.to_thread(write), media_type="application/json")
