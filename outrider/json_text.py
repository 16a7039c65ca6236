"""Reads JSON in Python, which gives way to other threads. Pure."""

from __future__ import annotations

import json
import json.decoder
import json.scanner
from collections.abc import Callable
from typing import Any

MOST_LISTS = 100_000
"""Lists and objects of a text; 200 kB of an agent's calls or tools have 4,400."""


class TooManyValues(ValueError):
    """A text holds more lists and objects than may be."""


def parse(text: str, make_object: Callable[[list[tuple[str, Any]]], Any] = dict) -> Any:
    """Return the value of a JSON text, as json.loads does, but let other threads run meanwhile.

    json's scanner in C holds the interpreter until it is done; the one in Python is slower and
    does not. Raises what json.loads raises, and TooManyValues for more than MOST_LISTS lists and
    objects: a million of them also stop everything when they are collected.
    """
    count = 0

    def counted(read_one: Callable[..., Any]) -> Callable[..., Any]:
        def read_counted(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count > MOST_LISTS:
                raise TooManyValues(f"holds more than {MOST_LISTS} lists and objects")
            return read_one(*arguments)

        return read_counted

    decoder = json.JSONDecoder(object_pairs_hook=make_object)
    decoder.parse_array = counted(json.decoder.JSONArray)  # type: ignore[attr-defined]
    decoder.parse_object = counted(json.decoder.JSONObject)  # type: ignore[attr-defined]
    decoder.scan_once = json.scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
    return decoder.decode(text)
