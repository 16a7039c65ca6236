"""Keys of requests that are sent again: what is a key, whose it is, and what is remembered."""

from __future__ import annotations

import pytest

from gateway.idempotency import KnownKeys, fingerprint, read_key
from outrider.errors import InvalidRequest, KeyReused
from outrider.idempotency import name_of


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
    mine, others = name_of("key", [b"Bearer a"]), name_of("key", [b"Bearer b"])
    assert len({mine, others, name_of("key", []), name_of("other", [b"Bearer a"])}) == 4
    assert name_of("key", [b"Bearer a"]) == mine


def test_requests_are_equal_by_all_that_they_say() -> None:
    same = fingerprint("POST", "/v1/completions", b"", b"{}")
    assert fingerprint("POST", "/v1/completions", b"", b"{}") == same
    for other in (
        ("PUT", "/v1/completions", b"", b"{}"),
        ("POST", "/v1/completion", b"", b"{}"),
        ("POST", "/v1/completions", b"a", b"{}"),
        ("POST", "/v1/completions", b"", b"{ }"),
        ("POST", "/v1/completion", b"s", b"{}"),
    ):
        assert fingerprint(*other) != same


def test_a_key_brings_its_answer_and_no_other_requests() -> None:
    known: KnownKeys[str] = KnownKeys()
    assert known.find(b"k", b"r", 0.0) is None
    known.begin(b"k", b"r", "the answer")
    assert known.find(b"k", b"r", 1.0) == "the answer"
    with pytest.raises(KeyReused):
        known.find(b"k", b"other", 1.0)
    known.end(b"k", 10, 2.0)
    assert known.find(b"k", b"r", 3.0) == "the answer"
    with pytest.raises(KeyReused):
        known.find(b"k", b"other", 3.0)


def test_what_failed_is_forgotten() -> None:
    known: KnownKeys[str] = KnownKeys()
    known.begin(b"k", b"r", "half an answer")
    known.drop(b"k")
    assert known.find(b"k", b"other", 0.0) is None and len(known) == 0


def test_what_is_in_flight_is_never_forgotten_and_what_is_over_is_after_a_time() -> None:
    known: KnownKeys[str] = KnownKeys(keep_seconds=10.0)
    known.begin(b"long", b"r", "l")
    known.begin(b"short", b"r", "s")
    known.end(b"short", 5, 100.0)
    assert known.find(b"short", b"r", 110.0) == "s"
    assert known.find(b"short", b"r", 110.1) is None
    assert known.find(b"long", b"r", 1e9) == "l"
    assert known.byte_count == 0


def test_the_oldest_make_room() -> None:
    known: KnownKeys[int] = KnownKeys(most_keys=3, most_bytes=100)
    for i in range(5):
        known.begin(b"%d" % i, b"r", i)
        known.end(b"%d" % i, 10, float(i))
    assert [known.find(b"%d" % i, b"r", 5.0) for i in range(5)] == [None, None, 2, 3, 4]
    known.begin(b"large", b"r", 9)
    known.end(b"large", 85, 6.0)
    assert known.byte_count <= 100
    assert known.find(b"large", b"r", 7.0) == 9 and known.find(b"4", b"r", 7.0) == 4
    assert known.find(b"3", b"r", 7.0) is None
