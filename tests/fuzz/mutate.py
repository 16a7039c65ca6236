"""Changes inputs at random: bytes, JSON, protobuf messages. The same `rng` makes the same ones."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError, Message

from tests.support.hostile import RandomMessages

_NUMBERS = (0, 1, 2, 3, 4, 7, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 63)
_MOST_BYTES = 1 << 16
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 2**31 - 1, 2**31, -(2**31), 2**63, 2**64, 1e308, 0.5, -0.0),
    *("", "a", "1", "\x00", "\ud800", "é\U0001f600", "x" * 400, "auto", "none", "required"),
    *([], [[]], [0], [None], ["a"], {}, {"type": "text"}, {"type": "function"}, {"": {}}),
    *(float("nan"), float("inf"), -float("inf")),
)


def mutate_bytes(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Return bytes with one to four things changed."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(7)
        if kind == 0:
            del changed[at:]
        elif kind == 1:
            del changed[at : at + rng.choice((1, 2, 4, 8, 40))]
        elif kind == 2:
            changed[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 40)))
        elif kind == 3:
            width = rng.choice((1, 2, 4, 8))
            number = rng.choice(_NUMBERS) & ((1 << 8 * width) - 1)
            changed[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))
        elif kind == 4:
            other = rng.choice(others) if others else data
            start = rng.randrange(len(other) + 1)
            changed[at:] = other[start:]
        elif kind == 5:
            piece = changed[at : at + rng.choice((1, 4, 8, 40))]
            changed[at:at] = piece * rng.choice((1, 2, 30))
        elif at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed[:_MOST_BYTES])


def mutate_json(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Return a JSON text with some of its values changed; at times its bytes."""
    try:
        value = json.loads(data)
        strange = [json.loads(rng.choice(others))] if others else []
    except (ValueError, RecursionError):
        return mutate_bytes(data, others, rng)
    if rng.random() < 0.15:
        return mutate_bytes(data, others, rng)
    for _ in range(rng.choice((1, 1, 2, 5))):
        value = _changed(value, strange, rng)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")[:_MOST_BYTES]


def _changed(value: Any, strange: Sequence[Any], rng: random.Random) -> Any:
    """Return a value in which one thing is another."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        return _changed_object(dict(value), strange, rng)
    if isinstance(value, list) and value and rng.random() < 0.9:
        changed, at = list(value), rng.randrange(len(value))
        kind = rng.randrange(4)
        if kind == 0:
            del changed[at]
        elif kind == 1:
            changed[at:at] = [changed[at]] * rng.choice((1, 2, 70))
        else:
            changed[at] = _changed(changed[at], strange, rng)
        return changed
    if isinstance(value, str) and rng.random() < 0.4:
        return mutate_bytes(value.encode("utf-8", "replace"), (), rng).decode("utf-8", "replace")
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.4:
        return rng.choice((value + 1, value - 1, -value, value * 1000, float(value)))
    if rng.random() < 0.1:
        return json.loads("[" * 80 + "]" * 80)
    return rng.choice(_VALUES)


def _changed_object(value: dict[str, Any], strange: Sequence[Any], rng: random.Random) -> Any:
    name = rng.choice(list(value))
    kind = rng.randrange(6)
    if kind == 0:
        del value[name]
    elif kind == 1:
        value[rng.choice((name.upper(), name + "s", "", "n", "stream", "stop"))] = value[name]
    elif kind == 2 and strange and isinstance(strange[0], dict):
        value |= dict(rng.sample(list(strange[0].items()), min(2, len(strange[0]))))
    else:
        value[name] = _changed(value[name], strange, rng)
    return value


def mutate_messages(
    kind: type[Message], messages: Sequence[bytes], rng: random.Random
) -> list[bytes]:
    """Return what a stream sends, with messages changed, gone, repeated, in another order."""
    changed = list(messages)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(changed) + 1)
        dice = rng.random()
        if dice < 0.15 or at == len(changed):
            new = RandomMessages(rng.randrange(1 << 30)).message(kind)
            changed.insert(at, new.SerializePartialToString())
        elif dice < 0.2:
            del changed[at]
        elif dice < 0.3:
            changed.insert(rng.randrange(len(changed) + 1), changed[at])
        elif dice < 0.4:
            changed[at] = mutate_bytes(changed[at], changed, rng)
        else:
            changed[at] = _mutate_message(kind, changed[at], rng)
    return changed[:40]


def _mutate_message(kind: type[Message], data: bytes, rng: random.Random) -> bytes:
    """Return a message with a field of it, or of a message in it, set, cleared or drawn anew."""
    message: Any = kind()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return mutate_bytes(data, (), rng)
    inside = message
    while (below := list(_below(inside))) and rng.random() < 0.7:
        inside = rng.choice(below)
    fields = inside.DESCRIPTOR.fields
    if fields:
        field = rng.choice(fields)
        if rng.random() < 0.8 or not field.is_repeated:
            inside.ClearField(field.name)
        if rng.random() < 0.8:
            RandomMessages(rng.randrange(1 << 30)).fill(inside, field)
    return message.SerializePartialToString()  # type: ignore[no-any-return]


def _below(message: Any) -> list[Any]:
    """Return the messages that are set in a message."""
    found: list[Any] = []
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            found += list(value) if field.is_repeated else [value]
    return found
