"""Which refusals are remembered: by host and model, few, and not for long."""

from __future__ import annotations

from orchestrator.refused_drafts import (
    MOST_OF_A_HOST,
    MOST_REFUSED,
    REMEMBERED_SECONDS,
    RefusedDrafts,
)


def names(refused: RefusedDrafts, now: float = 0.0) -> list[str]:
    return [each.model_name for each in refused.latest(now)]


def test_attempts_of_one_draft_are_one_entry_whatever_port_they_come_from() -> None:
    refused = RefusedDrafts()
    refused.note("10.0.0.1:1111", "small", "token 17 differs", 0.0)
    refused.note("10.0.0.2:1111", "small", "token 18 differs", 1.0)
    refused.note("10.0.0.1:2222", "small", "EOS id differs", 2.0)
    latest, other = refused.latest(3.0)
    assert (latest.address, latest.reason, latest.attempt_count, latest.time) == (
        "10.0.0.1:2222",
        "EOS id differs",
        2,
        2.0,
    )
    assert (other.address, other.attempt_count) == ("10.0.0.2:1111", 1)


def test_a_host_that_tries_under_any_names_pushes_nobody_out() -> None:
    refused = RefusedDrafts()
    refused.note("10.0.0.1:1", "honest", "token 17 differs", 0.0)
    for i in range(10_000):
        refused.note(f"[::1]:{i % 60_000}", f"name {i}", "junk", 0.0)
    assert names(refused) == ["name 9999", "name 9998", "name 9997", "name 9996", "honest"]
    assert len(refused._refusals) == MOST_OF_A_HOST + 1


def test_hosts_without_end_leave_the_latest() -> None:
    refused = RefusedDrafts()
    for i in range(1000):
        refused.note(f"10.0.{i // 250}.{i % 250}:1", f"{i}", "junk", 0.0)
    assert names(refused) == [str(i) for i in range(999, 999 - MOST_REFUSED, -1)]


def test_a_refusal_is_forgotten_after_a_while() -> None:
    refused = RefusedDrafts()
    refused.note("10.0.0.1:1", "old", "junk", 0.0)
    refused.note("10.0.0.1:1", "new", "junk", 60.0)
    assert names(refused, REMEMBERED_SECONDS - 1) == ["new", "old"]
    assert names(refused, REMEMBERED_SECONDS) == ["new"]
    assert names(refused, REMEMBERED_SECONDS + 60) == [] and not refused._refusals


def test_a_draft_that_joins_is_no_refused_one_any_more() -> None:
    refused = RefusedDrafts()
    for address, name in (("10.0.0.1:1", "small"), ("10.0.0.1:2", ""), ("10.0.0.1:3", "other")):
        refused.note(address, name, "junk", 0.0)
    refused.note("10.0.0.2:1", "small", "junk", 0.0)
    refused.forget("10.0.0.1:9", "small")
    assert [(each.address, each.model_name) for each in refused.latest(0.0)] == [
        ("10.0.0.2:1", "small"),
        ("10.0.0.1:3", "other"),
    ]


def test_names_and_reasons_are_one_short_line_that_a_terminal_may_show() -> None:
    refused = RefusedDrafts()
    refused.note("10.0.0.1:1", "\x1b[2J\n" + "n" * 5000, "r" * 300, 0.0)
    refused.note("10.0.0.1:2", "b", "r" * 301, 0.0)
    second, first = refused.latest(0.0)
    assert first.model_name.startswith(" [2J nn") and len(first.model_name) == 64
    assert first.reason == "r" * 300
    assert second.reason == "r" * 299 + "…"
