"""The log: what is a key, whose it is, what is a repetition, and what is kept for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.repeats import read_key
from orchestrator.log import Entry, Log, Retention, digest_of, owned_key
from outrider.errors import InvalidRequest, KeyReused


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ([], None),
        ([b"8e03978e-40d5"], "8e03978e-40d5"),
        ([b'"8e03978e-40d5"'], "8e03978e-40d5"),
        ([b'  "a b"  '], "a b"),
        ([b'"'], '"'),
        ([b"x" * 255], "x" * 255),
    ],
)
def test_a_key_is_read_with_the_drafts_quotes_and_without(
    values: list[bytes], key: str | None
) -> None:
    assert read_key(values) == key


@pytest.mark.parametrize("values", [[b""], [b'""'], [b"x" * 256], [b"a\tb"], [b"a", b"a"]])
def test_what_is_no_key_is_refused(values: list[bytes]) -> None:
    with pytest.raises(InvalidRequest, match="Idempotency-Key"):
        read_key(values)


def test_a_key_is_another_ones_with_other_credentials() -> None:
    mine, others = owned_key("key", [b"Bearer a"]), owned_key("key", [b"Bearer b"])
    assert len({mine, others, owned_key("key", []), owned_key("other", [b"Bearer a"])}) == 4
    assert owned_key("key", [b"Bearer a"]) == mine


def test_requests_are_equal_by_all_that_they_say() -> None:
    same = digest_of(b"POST", b"/v1/completions", b"", b"{}")
    assert digest_of(b"POST", b"/v1/completions", b"", b"{}") == same
    for other in (
        (b"PUT", b"/v1/completions", b"", b"{}"),
        (b"POST", b"/v1/completion", b"", b"{}"),
        (b"POST", b"/v1/completions", b"a", b"{}"),
        (b"POST", b"/v1/completions", b"", b"{ }"),
        (b"POST", b"/v1/completion", b"s", b"{}"),
    ):
        assert digest_of(*other) != same


def log_of(count: int = 100, byte_count: int = 1000, path: Path | None = None) -> Log:
    return Log(Retention(10.0, count, byte_count, 10.0), path)


def over(log: Log, key: bytes, size: int) -> Entry:
    """Return a submission that has brought so many bytes and is over."""
    entry = log.begin(b"r", key)
    log.append(entry, bytes(size))
    log.finish(entry)
    log.make_room()
    return entry


def test_a_key_brings_its_submission_and_no_other_requests() -> None:
    log = log_of()
    assert log.repeated(b"k", b"r", "its field") is None
    entry = log.begin(b"r", b"k")
    for _ in range(2):  # in flight, and over
        assert log.repeated(b"k", b"r", "its field") is entry
        with pytest.raises(KeyReused, match="its field"):
            log.repeated(b"k", b"other", "its field")
        log.finish(entry)


def test_what_failed_is_forgotten() -> None:
    log = log_of()
    log.forget(log.begin(b"r", b"k"))
    assert log.repeated(b"k", b"other", "") is None and not log.entries


def test_an_older_submission_of_a_key_takes_nothing_from_the_newer_one() -> None:
    log = log_of()
    older, newer = log.begin(b"r", b"k"), log.begin(b"r", b"k")
    log.forget(older)
    assert log.repeated(b"k", b"r", "") is newer


def test_what_is_in_flight_is_never_forgotten_and_what_is_over_is_after_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = log_of()
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    long, short = log.begin(b"r", b"long"), over(log, b"short", 5)
    monkeypatch.setattr("time.monotonic", lambda: 110.0)
    assert log.repeated(b"short", b"r", "") is short
    monkeypatch.setattr("time.monotonic", lambda: 110.1)
    assert log.repeated(b"short", b"r", "") is None
    monkeypatch.setattr("time.monotonic", lambda: 1e9)
    assert log.repeated(b"long", b"r", "") is long
    assert log.byte_count == 0


def test_the_longest_unused_make_room() -> None:
    log = log_of(count=3, byte_count=100)
    entries = [over(log, b"%d" % i, 10) for i in range(5)]
    found = [log.repeated(b"%d" % i, b"r", "") for i in range(5)]
    assert found == [None, None, *entries[2:]]
    large = over(log, b"large", 85)
    assert log.byte_count <= 100
    assert log.repeated(b"large", b"r", "") is large
    assert log.repeated(b"4", b"r", "") is entries[4]
    assert log.repeated(b"3", b"r", "") is None


def test_what_is_in_flight_makes_no_room() -> None:
    log = log_of(count=1)
    entry = log.begin(b"r")
    assert log.make_room() and not log.make_room(more=1)
    log.append(entry, bytes(1001))
    assert not log.make_room()
    log.take(entry, 1)
    assert log.make_room() and log.byte_count == 0, "what was taken is gone"


async def test_events_are_read_once_they_are_stored_and_are_there_after_a_restart(
    tmp_path: Path,
) -> None:
    log = log_of(path=tmp_path / "log.sqlite")
    entry, lost = log.begin(b"r", b"k", caller="c", owner="o"), log.begin(b"r", b"l")
    log.append(entry, b"before it is kept")
    log.keep(entry, b"request", b"opening")
    log.append(entry, b"after")
    log.append(lost, b"never kept")
    assert entry.stored == 1 and lost.stored == 1
    await log.settle()
    assert entry.stored == 2
    log.take(entry, 1)
    size = entry.byte_count
    await log.close()
    again = log_of(path=tmp_path / "log.sqlite")
    assert again.repeated(b"l", b"r", "") is None
    found = again.repeated(b"k", b"r", "")
    assert found is not None and (found.id, found.byte_count) == (entry.id, size)
    assert (found.caller, found.owner) == ("c", "o")
    assert (found.request, found.opening, found.is_over) == (b"request", b"opening", False)
    assert (found.first, found.events, found.stored) == (1, [b"after"], 2)
    assert await again.read(found) == [b"before it is kept", b"after"]
    await again.close()


@pytest.mark.fault(
    "restart",
    "The orchestrator restarts when a job was submitted more than a day ago (`--state`)",
    before="the job was gone, also where it was in flight or had ended a moment before",
    now="what is in flight stays, and what is over has its time from its end",
)
async def test_what_is_over_has_its_time_from_its_end_and_what_is_in_flight_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)
    path = tmp_path / "log.sqlite"
    log = log_of(path=path)
    flying, ended = log.begin(b"r"), log.begin(b"r")
    for entry in (flying, ended):
        log.keep(entry)
    monkeypatch.setattr("time.time", lambda: 1100.0)
    log.finish(ended)
    await log.close()
    for now, left in [(1119.0, {flying.id, ended.id}), (1121.0, {flying.id})]:
        monkeypatch.setattr("time.time", lambda now=now: now)
        log = log_of(path=path)
        assert set(log.entries) == left
        await log.close()
