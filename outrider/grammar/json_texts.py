"""What the texts of JSON look like: GBNF for all, regular expressions for numbers. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from fractions import Fraction

MOST_DIGITS = 18  # what every reader takes for a whole number, in 64 bits
MOST_PLACES = 15  # after the point; a reader's doubles have no more
GREATEST = 10**MOST_DIGITS - 1

FIXED = {
    # One line break, or the model could indent for ever.
    "ws": r'( " " | "\n" [ \t]{0,20} )?',
    "plain": r'[^"\\\x7F\x00-\x1F]',
    "char": r'plain | "\\" ( ["\\/bfnrt] | "u" unit )',
    # As much of `char` as goes into larger lexemes: models write no other escapes but by choice.
    "short": r'plain | "\\" ["\\/bfnrt]',
    # Half a character, a surrogate, is no text.
    "unit": r"[0-9a-cA-CefEF] hex{3} | [dD] [0-7] hex{2}",
    "hex": "[0-9a-fA-F]",
    "string": r'"\"" char* "\""',
    "null": '"null"',
    "boolean": '"true" | "false"',
    "integer": f'"-"? ( "0" | [1-9] [0-9]{{0,{MOST_DIGITS - 1}}} )',
    "number": "integer fraction? ( [eE] [-+]? [0-9]{1,2} )?",
    "fraction": f'"." [0-9]{{1,{MOST_PLACES}}}',
    "value": "object | array | string | number | boolean | null",
    "object": '"{" ws ( member ( "," ws member )* ws )? "}"',
    "member": 'string ":" ws value',
    "array": '"[" ws ( value ( "," ws value )* ws )? "]"',
}


def quoted(text: str) -> str:
    """Return a GBNF literal."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def either(parts: Iterable[str]) -> str:
    """Return a choice in GBNF; parentheses only where there is one."""
    found = list(dict.fromkeys(parts))
    return found[0] if len(found) == 1 else f"( {' | '.join(found)} )"


def literal(value: object) -> str:
    """Return a GBNF literal of a value's JSON. Raises ValueError for what JSON cannot say."""
    return quoted(json.dumps(value, ensure_ascii=False, allow_nan=False))


def decimal(number: Fraction) -> str:
    """Return the JSON of a number with a finite number of digits."""
    if number.denominator == 1:
        return str(number.numerator)
    places = next(n for n in range(400) if not number * 10**n % 1)
    whole, digits = divmod(abs(number) * 10**places, 10**places)
    return f"{'-' if number < 0 else ''}{whole}.{int(digits):0{places}d}"


def numbers(
    low: Fraction, high: Fraction, places: int, low_open: bool = False, high_open: bool = False
) -> str | None:
    """Return a regular expression for the numbers of a range, None where there are none.

    Ends that are open are left out; up to `places` digits stand after the point.
    """
    parts: list[str] = []
    if low < 0:
        ends = max(Fraction(0), -high), -low, high <= 0 and high_open, low_open
        parts += [f"-{text}" for text in _decimals(*ends, places) if text != "0"]
    if high >= 0:
        ends = max(Fraction(0), low), high, low >= 0 and low_open, high_open
        parts += _decimals(*ends, places)
    return f"(?:{'|'.join(parts)})" if parts else None


def _decimals(
    low: Fraction, high: Fraction, low_open: bool, high_open: bool, places: int
) -> Iterator[str]:
    """Yield alternatives for the decimals from one to another, without a sign."""
    scaled = math.ceil(low * 10**places), math.floor(high * 10**places)
    if scaled[0] > scaled[1]:
        return
    low_open = low_open and scaled[0] == low * 10**places
    high_open = high_open and scaled[1] == high * 10**places
    (first, above), (last, below) = (_split(end, places) for end in scaled)
    if not above and not low_open and (first < last or below or not high_open):
        yield str(first)
    same = first == last
    yield from _with_fraction(
        first, _between(above, below if same else None, low_open, same and high_open, places)
    )
    if same:
        return
    if first + 1 < last:
        fraction = rf"(?:\.\d{{1,{places}}})?" if places else ""
        yield _naturals(first + 1, last - 1) + fraction
    if below or not high_open:
        yield str(last)
    yield from _with_fraction(last, _between("", below, False, high_open, places))


def _split(scaled: int, places: int) -> tuple[int, str]:
    """Return the whole part, and the digits after the point without zeros at the end."""
    whole, digits = divmod(scaled, 10**places)
    return whole, f"{digits:0{places}d}".rstrip("0") if digits else ""


def _with_fraction(whole: int, digits: str | None) -> Iterator[str]:
    if digits is not None:
        yield rf"{whole}\.{digits}"


def _between(
    low: str, high: str | None, low_open: bool, high_open: bool, places: int, may_end: bool = False
) -> str | None:
    """Return an expression for the digits after a point, from `low` to `high`, None for no bound.

    Neither ends with 0. `may_end`: no digit need follow. None where there are none.
    """
    if high == "" and (low or low_open or high_open):
        return None
    if places == 0:
        return "" if may_end and not low and not low_open else None
    if high == "":  # nothing but zeros
        return "" if may_end else "0"
    if not low and not low_open and high is None:
        return rf"\d{{{0 if may_end else 1},{places}}}"
    first, last = int(low[:1] or "0"), 9 if high is None else int(high[0])
    rest = None if high is None else high[1:]
    parts = [""] if may_end and not low and not low_open else []

    def add(digits: str, after: str | None) -> None:
        parts.extend([] if after is None else [digits + after])

    if high is not None and first == last:
        inner = _between(low[1:], rest, low_open, high_open, places - 1, may_end=True)
        add(str(first), inner)
    else:
        add(str(first), _between(low[1:], None, low_open, True, places - 1, may_end=True))
        most = last if high is None else last - 1
        if first < most:
            add(f"[{first + 1}-{most}]", rf"\d{{0,{places - 1}}}")
        if high is not None:
            add(str(last), _between("", rest, False, high_open, places - 1, may_end=True))
    return f"(?:{'|'.join(parts)})" if parts else None


def _naturals(low: int, high: int) -> str:
    parts = []
    for size in range(len(str(low)), len(str(high)) + 1):
        least = 10 ** (size - 1) if size > 1 else 0
        parts.append(_digits(str(max(low, least)), str(min(high, 10**size - 1))))
    return f"(?:{'|'.join(parts)})"


def _digits(low: str, high: str) -> str:
    """Return an expression for the numbers of a range, all of as many digits."""
    count = len(low) - 1
    zeros, nines = "0" * count, "9" * count
    if low[1:] == zeros and high[1:] == nines:
        return f"[{low[0]}-{high[0]}]" + (rf"\d{{{count}}}" if count else "")
    if low[0] == high[0]:
        return low[0] + _digits(low[1:], high[1:])
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
    return f"(?:{'|'.join(parts)})"
