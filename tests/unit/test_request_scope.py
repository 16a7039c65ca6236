"""Whose request a task works for, by what came with it."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from outrider.logs import formatter
from outrider.request_scope import (
    MOST_ID,
    RequestScope,
    carried,
    current,
    entered,
    nobodys,
    read_scope,
)

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_what_comes_is_kept_and_carried_on() -> None:
    scope = read_scope({"x-request-id": "a/b:7", "traceparent": PARENT, "tracestate": "v=1"})
    assert (scope.id, scope.is_given) == ("a/b:7", True)
    assert dict(scope.carried()) == {
        "x-request-id": "a/b:7",
        "traceparent": PARENT,
        "tracestate": "v=1",
    }


@pytest.mark.parametrize(
    "given", ["", "x" * (MOST_ID + 1), "two words", "a\nb", "caf\u00e9", "\x7f", "a\x00"]
)
def test_an_id_that_is_none_is_made_anew(given: str) -> None:
    scope = read_scope({"x-request-id": given})
    assert not scope.is_given
    assert len(scope.id) == 32
    assert scope.id != read_scope({}).id


def test_of_an_id_that_is_sent_twice_neither_counts() -> None:
    scope = read_scope([("x-request-id", "one"), ("x-request-id", b"two")])
    assert not scope.is_given


@pytest.mark.parametrize(
    "given",
    [
        PARENT.replace("00-", "01-", 1),
        PARENT.replace("-01", "-0g"),
        PARENT.upper(),
        f"{PARENT}-more",
        f"{PARENT}\n",
        "00-" + 32 * "0" + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + 16 * "0" + "-01",
    ],
)
def test_a_trace_parent_that_is_none_is_left_out_with_its_state(given: str) -> None:
    scope = read_scope({"traceparent": given, "tracestate": "v=1"})
    assert [name for name, _ in scope.carried()] == ["x-request-id"]


def test_a_trace_state_that_is_too_long_is_left_out() -> None:
    scope = read_scope({"traceparent": PARENT, "tracestate": "v" * 513})
    assert "tracestate" not in dict(scope.carried())


async def test_tasks_inherit_it_but_for_those_that_outlive_it() -> None:
    async def its() -> RequestScope | None:
        return current()

    scope = read_scope({})
    with entered(scope):
        assert await asyncio.create_task(its()) is scope
        assert await asyncio.create_task(its(), context=nobodys()) is None
    assert current() is None
    assert carried() == ()


def test_a_line_of_the_log_says_whose_it_is(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        lines = formatter(log.fileno())
    record = logging.LogRecord("outrider.test", logging.INFO, "", 0, "done", None, None)
    with entered(read_scope({"x-request-id": "mine"})):
        assert json.loads(lines.format(record))["request"] == "mine"
    assert "request" not in json.loads(lines.format(record))
