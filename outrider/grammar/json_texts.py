"""GBNF for the texts of JSON: what a string, a number in a range or a date may look like. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

MOST_DIGITS = 18  # what every reader takes for a whole number, in 64 bits
GREATEST = 10**MOST_DIGITS - 1

FIXED = {
    # One line break, or the model could indent for ever.
    "ws": r'( " " | "\n" [ \t]{0,20} )?',
    "plain": r'[^"\\\x7F\x00-\x1F]',
    "char": r'plain | "\\" ( ["\\/bfnrt] | "u" unit )',
    # Half a character, a surrogate, is no text.
    "unit": r"[0-9a-cA-CefEF] hex{3} | [dD] [0-7] hex{2}",
    "hex": "[0-9a-fA-F]",
    "string": r'"\"" char* "\""',
    "null": '"null"',
    "boolean": '"true" | "false"',
    "integer": f'"-"? ( "0" | [1-9] [0-9]{{0,{MOST_DIGITS - 1}}} )',
    "number": "integer fraction? ( [eE] [-+]? [0-9]{1,2} )?",
    "fraction": '"." [0-9]{1,15}',
    "value": "object | array | string | number | boolean | null",
    "object": '"{" ws ( member ( "," ws member )* ws )? "}"',
    "member": 'string ":" ws value',
    "array": '"[" ws ( value ( "," ws value )* ws )? "]"',
    "date": '[0-9]{4} "-" ( ( "0" [13578] | "1" [02] ) "-" day31 | ( "0" [469] | "11" ) "-" day30'
    ' | "02-" day28 )',
    "day28": '"0" [1-9] | "1" [0-9] | "2" [0-8]',
    "day30": 'day28 | "29" | "30"',
    "day31": 'day30 | "31"',
    "time": 'clock ":" [0-5] [0-9] ( "." [0-9]{1,9} )? ( "Z" | [-+] clock )',
    "clock": '( [01] [0-9] | "2" [0-3] ) ":" [0-5] [0-9]',
    "date-time": 'date "T" time',
    "uuid": 'hex{8} "-" hex{4} "-" hex{4} "-" hex{4} "-" hex{12}',
}
FORMATS = ("date", "time", "date-time", "uuid")


def quoted(text: str) -> str:
    """Return a GBNF literal."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def literal(value: object) -> str:
    """Return a GBNF literal of a value's JSON. Raises ValueError for what JSON cannot say."""
    return quoted(json.dumps(value, ensure_ascii=False, allow_nan=False))


def either(parts: Iterable[str]) -> str:
    """Return a choice; parentheses only where there is one."""
    found = list(dict.fromkeys(parts))
    return found[0] if len(found) == 1 else f"( {' | '.join(found)} )"


def integers(low: int, high: int) -> str:
    """Return GBNF for the whole numbers of a range within +-GREATEST."""
    parts = []
    if low < 0:
        parts.append(f'"-" {_naturals(max(1, -high), -low)}')
    if high >= 0:
        parts.append(_naturals(max(0, low), high))
    return either(parts)


def numbers(low: int, high: int, low_open: bool, high_open: bool) -> str:
    """Return GBNF for the numbers from one whole number to another, without an end that is open.

    There must be one.
    """
    parts: list[str] = []
    if low < 0:
        parts += _decimals('"-" ', max(0, -high), -low, high <= 0 and high_open, low_open)
    if high >= 0:
        nearest = max(0, low)
        parts += _decimals("", nearest, high, nearest == low and low_open, high_open)
    return either(parts)


def _decimals(sign: str, low: int, high: int, low_open: bool, high_open: bool) -> Iterator[str]:
    """Yield GBNF for the numbers from a natural one to another, with a sign before them."""
    first = low + low_open
    if first < high:
        yield f"{sign}{_naturals(first, high - 1)} fraction?"
    if low_open and low < high:
        yield f'{sign}"{low}." [0-9]{{0,14}} [1-9]'
    if first <= high and not high_open:
        yield f'{sign}"{high}"'


def _naturals(low: int, high: int) -> str:
    parts = []
    for size in range(len(str(low)), len(str(high)) + 1):
        least = 10 ** (size - 1) if size > 1 else 0
        parts.append(_digits(str(max(low, least)), str(min(high, 10**size - 1))))
    return either(parts)


def _digits(low: str, high: str) -> str:
    """Return GBNF for the numbers of a range, all of as many digits."""
    count = len(low) - 1
    zeros, nines = "0" * count, "9" * count
    if low[1:] == zeros and high[1:] == nines:
        return f"[{low[0]}-{high[0]}]" + (f" [0-9]{{{count}}}" if count else "")
    if low[0] == high[0]:
        return f'"{low[0]}" {_digits(low[1:], high[1:])}'
    parts = []
    first, last = int(low[0]), int(high[0])
    if low[1:] != zeros:
        parts.append(_digits(low, low[0] + nines))
        first += 1
    if high[1:] != nines:
        parts.append(_digits(high[0] + zeros, high))
        last -= 1
    if first <= last:
        parts.append(_digits(f"{first}{zeros}", f"{last}{nines}"))
    return either(parts)
