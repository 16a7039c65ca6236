"""Lines about refusals: each of a few, the count of many."""

from __future__ import annotations

import asyncio

import pytest

from outrider.audit import Audit
from outrider.errors import PermissionDenied

ERROR = PermissionDenied("not for you")


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, object]]]:
    return [
        (record.getMessage(), getattr(record, "fields", {}))
        for record in caplog.records
        if record.name == "outrider.audit"
    ]


def test_a_flood_is_as_many_lines_as_may_come_at_once(caplog: pytest.LogCaptureFixture):
    now = 0.0
    audit = Audit(at_once=5, clock=lambda: now)
    for _ in range(1000):
        audit.refused("alice", "10.0.0.1:5", "GET /metrics", ERROR)
    assert len(lines(caplog)) == 5 and audit.left_out == 995
    now = 12.0  # a fifth of a minute: one of five
    audit.refused("", "10.0.0.1:6", "x" * 1000, ERROR)
    message, fields = lines(caplog)[-1]
    assert message == "refused" and audit.left_out == 0
    assert fields == {
        "who": "nobody known",
        "peer": "10.0.0.1:6",
        "what": "x" * 128,
        "why": "PERMISSION_DENIED",
        "left_out": 995,
    }


async def test_the_count_comes_also_where_the_flood_has_ended(caplog: pytest.LogCaptureFixture):
    audit = Audit(at_once=6000)  # the next one after 10 ms
    for _ in range(7000):
        audit.refused("alice", "", "GET /metrics", ERROR)
    async with asyncio.timeout(60.0):
        while audit.left_out:  # noqa: ASYNC110 - it is a plain number
            await asyncio.sleep(0.01)
    told = lines(caplog)
    counts = [fields.get("left_out", 0) for _, fields in told]
    assert sum(message == "refused" for message, _ in told) + sum(counts) == 7000  # type: ignore[arg-type]
