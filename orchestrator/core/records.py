"""Which services a configured name stands for, by its records. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

MOST_RECORDS = 256
"""Services of one name, at most; those of more records are not dialled."""


def dialled(records: Sequence[str], before: Collection[str] = ()) -> list[str]:
    """Return which records of a name are dialled, each as a service; none: the name itself is.

    `records` are IP addresses, `before` those that were dialled until now. A name with one record
    is dialled by name, so that what comes up under another address in its place is the same
    service. One that has had several is a service for each record, also while it has one. Where
    nobody answers for the name, what was dialled stays. Of records of both kinds the IPv4 ones
    count: a machine has one of each.
    """
    if not records:
        return sorted(before)
    chosen = sorted({ip for ip in records if ":" not in ip} or set(records))[:MOST_RECORDS]
    return chosen if before or len(chosen) > 1 else []
