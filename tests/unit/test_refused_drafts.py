"""Which refusals are remembered: the latest of each host, few, and not for long."""

from __future__ import annotations

from orchestrator.refused_drafts import MOST_REFUSED, REMEMBERED_SECONDS, RefusedDrafts


def names(refused: RefusedDrafts, now: float = 0.0) -> list[str]:
    return [each.model_name for each in refused.latest(now)]


def test_attempts_of_one_host_are_one_entry_whatever_port_they_come_from() -> None:
    refused = RefusedDrafts()
    refused.note("10.0.0.1:1111", "small", "token 17 differs", 0.0)
    refused.note("10.0.0.2:1111", "small", "token 18 differs", 1.0)
    refused.note("10.0.0.1:2222", "other", "EOS id differs", 2.0)
    latest, other = refused.latest(3.0)
    assert (latest.address, latest.model_name, latest.reason) == (
        "10.0.0.1:2222",
        "other",
        "EOS id differs",
    )
    assert (latest.attempt_count, latest.time) == (2, 2.0)
    assert (other.address, other.attempt_count) == ("10.0.0.2:1111", 1)


def test_a_host_that_tries_under_any_names_pushes_nobody_out() -> None:
    refused = RefusedDrafts()
    refused.note("10.0.0.1:1", "honest", "token 17 differs", 0.0)
    for i in range(1000):
        refused.note(f"[::1]:{i}", f"name {i}", "junk", 0.0)
    assert names(refused) == ["name 999", "honest"]


def test_hosts_without_end_leave_the_latest() -> None:
    refused = RefusedDrafts()
    for i in range(1000):
        refused.note(f"10.0.{i // 250}.{i % 250}:1", f"{i}", "junk", 0.0)
    assert names(refused) == [str(i) for i in range(999, 999 - MOST_REFUSED, -1)]


def test_a_refusal_is_forgotten_after_a_while_and_once_a_draft_of_the_host_joins() -> None:
    refused = RefusedDrafts()
    refused.note("10.0.0.1:1", "old", "junk", 0.0)
    refused.note("10.0.0.2:1", "new", "junk", 60.0)
    assert names(refused, REMEMBERED_SECONDS - 1) == ["new", "old"]
    assert names(refused, REMEMBERED_SECONDS) == ["new"]
    refused.forget("10.0.0.2:9")
    assert names(refused, REMEMBERED_SECONDS) == []


def test_names_and_reasons_are_one_short_line_that_a_terminal_may_show() -> None:
    refused = RefusedDrafts()
    refused.note("10.0.0.1:1", "\x1b[2J\n" + "n" * 5000, "r" * 300, 0.0)
    refused.note("10.0.0.2:1", "b", "r" * 301, 0.0)
    second, first = refused.latest(0.0)
    assert first.model_name.startswith(" [2J nn") and len(first.model_name) == 64
    assert first.reason == "r" * 300
    assert second.reason == "r" * 299 + "…"
