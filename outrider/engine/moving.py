"""Lets sessions change their sequences, together with what those hold."""

from __future__ import annotations

from enum import Enum

from outrider.engine.cache import SessionCache
from outrider.engine.model import Model


class Moved(Enum):
    """What went along when two sequences changed owners."""

    NOTHING = "nothing"  # they did not
    ONE = "one"  # what one holds was copied
    BOTH = "both"


def exchange(model: Model, cache: SessionCache, first: int, second: int) -> Moved:
    """Let two sequences change owners, unless their cells cannot follow; return what did.

    What nobody holds any more is not moved along: a copy then does, of any kind of memory.
    """
    free = next((each for each in (first, second) if cache.is_free(each)), None)
    moved = Moved.BOTH
    if free is not None:
        used = first if free == second else second
        count = cache.held_count(used)
        if model.copy_prefix(used, free, count) < count:
            model.truncate(free, 0)
            return Moved.NOTHING
        model.truncate(used, 0)
        moved = Moved.ONE
    elif model.describe().can_exchange:
        model.exchange(first, second)
    else:
        return Moved.NOTHING
    cache.exchange(first, second)
    return moved
