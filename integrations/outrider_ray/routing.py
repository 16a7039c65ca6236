"""Where a text is written: at the replica that ends it first, by load and what it has read. Pure.

A prompt becomes a chain of digests, one after each block of its bytes, each over all before it, and
they begin with the caller's credentials and cache salt: what is known of one caller's prompts says
nothing of another's. Which replica has read what is a guess that costs time where it is wrong, and
nothing else.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

BLOCK = 128
"""Bytes of a prompt between two digests."""
READ_BYTES = 64 * 1024
"""What is looked at of a prompt."""
PARSED_BYTES = 1024 * 1024
"""A longer body is routed by load alone."""

_DIGEST_BYTES = 8
_KEPT_DIGESTS = 1 << 16  # of one replica: 8 MiB of prompts
_PROMPTS = ("system", "instructions", "messages", "input", "prompt", "content")


@dataclass(frozen=True, slots=True)
class Route:
    """What there is to choose a replica by."""

    digests: tuple[bytes, ...] = ()  # of each prefix of the prompt, the shortest first
    replica: str = ""  # has what this is about, such as a job; another one is asked if it is gone


def digests_of(prompt: bytes, whose: bytes = b"") -> tuple[bytes, ...]:
    """Return a digest of each prefix of a prompt that is a whole number of blocks long.

    `whose` is what the caller showed; prompts of other callers have other digests.
    """
    found, last = [], blake2b(whose, digest_size=_DIGEST_BYTES).digest()
    for end in range(BLOCK, min(len(prompt), READ_BYTES) + 1, BLOCK):
        last = blake2b(last + prompt[end - BLOCK : end], digest_size=_DIGEST_BYTES).digest()
        found.append(last)
    return tuple(found)


def prompt_of(body: bytes) -> bytes:
    """Return the prompt in a JSON request to the gateway; empty where there is none.

    The next turn of a chat begins with the bytes of this one.
    """
    try:
        return b"".join(_pieces(_parsed(body)))
    except RecursionError:
        return b""


def salt_of(body: bytes) -> bytes:
    """Return the cache salt of a JSON request, as far as it has one that can be read."""
    request = _parsed(body)
    salt = request.get("cache_salt") if isinstance(request, dict) else None
    return salt.encode(errors="replace") if isinstance(salt, str) else b""


def _parsed(body: bytes) -> Any:
    """Return a body's JSON; None where there is none, or so much that others would wait for it."""
    try:
        return json.loads(body) if len(body) <= PARSED_BYTES else None
    except (ValueError, RecursionError):
        return None


def _pieces(request: Any) -> Iterable[bytes]:
    if not isinstance(request, dict):
        return
    if isinstance(request.get("params"), dict):  # JSON-RPC
        request = request["params"]
    for name in _PROMPTS:
        value = request.get(name)
        if value is None:
            continue
        for each in value if isinstance(value, list) else [value]:
            yield json.dumps(each).encode()


class HeldPrefixes:
    """The prefixes that each replica has read, the ones used longest ago forgotten first."""

    def __init__(self) -> None:
        self._held: dict[str, OrderedDict[bytes, None]] = {}

    def note(self, replica: str, digests: Iterable[bytes]) -> None:
        """A replica was given a prompt."""
        held = self._held.setdefault(replica, OrderedDict())
        for each in digests:
            held[each] = None
            held.move_to_end(each)
        while len(held) > _KEPT_DIGESTS:
            held.popitem(last=False)

    def keep(self, replicas: Collection[str]) -> None:
        """Only these replicas are still there."""
        self._held = {name: held for name, held in self._held.items() if name in replicas}

    def count(self, replica: str, digests: Iterable[bytes]) -> int:
        """Return how many of a prompt's blocks a replica has read."""
        held = self._held.get(replica, OrderedDict())
        blocks = 0
        for each in digests:
            if each not in held:
                break
            blocks += 1
        return blocks


def ranked(route: Route, loads: Mapping[str, int], held: HeldPrefixes, reading: int) -> list[str]:
    """Return the replicas, the best one first.

    `loads` has the calls in flight at each; `reading` bytes that have to be read anew weigh as much
    as one of them. What weighs the same is ordered by the prompt's beginning, so that routers that
    know nothing of each other send it the same way.
    """

    def weight(name: str) -> tuple[bool, float, bytes]:
        unread = BLOCK * (len(route.digests) - held.count(name, route.digests))
        first = route.digests[0] if route.digests else b""
        order = blake2b(first + name.encode(), digest_size=_DIGEST_BYTES).digest()
        return name != route.replica, loads[name] + unread / reading, order

    return sorted(loads, key=weight)


def job_name(job_id: str, replica: str) -> str:
    """Return a job's name for clients, which says where it is."""
    return f"{job_id}@{replica}"


def read_job_name(name: str) -> tuple[str, str]:
    """Return the name of a job at its replica, and the replica; empty where none is named."""
    job_id, at, replica = name.rpartition("@")
    return (job_id, replica) if at else (name, "")
