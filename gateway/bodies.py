"""Reads and writes large JSON beside the event loop, so that nobody else's tokens wait for it."""

from __future__ import annotations

import asyncio
import json
import json.decoder
import json.scanner
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec

from fastapi._compat import ModelField
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gateway.options import MOST_DEPTH, MOST_VALUES

P = ParamSpec("P")

LARGE_BYTES = 64 * 1024
"""What is read and checked in C within some 5 ms, whatever it is."""

BESIDE = ThreadPoolExecutor(1, "large-body")
"""Reads one large body after the other: several threads would keep the loop waiting in turn."""


class JsonRoute(APIRoute):
    """A route that reads and checks large bodies in a thread."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        field = self.body_field
        if field is None:
            return handle

        async def handle_json(request: Request) -> Response:
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
            loop = asyncio.get_running_loop()
            self._checked = await loop.run_in_executor(BESIDE, read, body, field)

    async def json(self) -> Any:
        return await super().json() if self._checked is None else self._checked


def read(body: bytes, field: ModelField) -> Any:
    """Return the model that a JSON text becomes. Raises RequestValidationError."""
    try:
        value = parse(body)
    except json.JSONDecodeError as error:
        raise _refusal(error.pos, "JSON decode error") from None
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


def parse(body: bytes, make_object: Callable[[list[tuple[str, Any]]], Any] = dict) -> Any:
    """Return the value of a JSON text, as json.loads does, but let other threads run meanwhile.

    json's scanner in C holds the interpreter until it is done; the one in Python is slower and
    does not. Raises what json.loads raises, and ValueError for more than MOST_VALUES lists and
    objects: a million of them also stop everything when they are collected.
    """
    count = 0

    def counted(read_one: Callable[..., Any]) -> Callable[..., Any]:
        def read_counted(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count > MOST_VALUES:
                raise ValueError(f"holds more than {MOST_VALUES} names and values")
            return read_one(*arguments)

        return read_counted

    decoder = json.JSONDecoder(object_pairs_hook=make_object)
    decoder.parse_array = counted(json.decoder.JSONArray)  # type: ignore[attr-defined]
    decoder.parse_object = counted(json.decoder.JSONObject)  # type: ignore[attr-defined]
    decoder.scan_once = json.scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
    return decoder.decode(body.decode(json.detect_encoding(body)))


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


async def written(answer: Callable[P, Any], /, *arguments: P.args, **options: P.kwargs) -> Response:
    """Return the response that holds, as JSON, what `answer` returns; it is called in a thread."""

    def write() -> bytes:
        # Piece by piece, in Python: json.dumps holds the interpreter until it is done.
        return "".join(_ENCODER.iterencode(answer(*arguments, **options))).encode()

    return Response(await asyncio.to_thread(write), media_type="application/json")
