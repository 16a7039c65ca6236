"""Which records of a name are dialled, each as a service."""

from __future__ import annotations

import pytest

from orchestrator.core.records import MOST_RECORDS, dialled


@pytest.mark.parametrize(
    ("records", "before", "now"),
    [
        (["10.0.0.1"], [], []),
        ([], [], []),
        (["10.0.0.2", "10.0.0.1"], [], ["10.0.0.1", "10.0.0.2"]),
        (["10.0.0.2", "10.0.0.2"], [], []),
        (["10.0.0.3"], ["10.0.0.1", "10.0.0.2"], ["10.0.0.3"]),
        ([], ["10.0.0.2", "10.0.0.1"], ["10.0.0.1", "10.0.0.2"]),
        (["::1", "127.0.0.1"], [], []),
        (["fd00::2", "fd00::1"], [], ["fd00::1", "fd00::2"]),
        (["fd00::1", "fd00::2", "10.0.0.1", "10.0.0.2"], [], ["10.0.0.1", "10.0.0.2"]),
    ],
    ids=[
        "one record: the name itself",
        "no record: the name itself",
        "several: each of them",
        "one record twice",
        "one record is left of several",
        "nobody answers for the name",
        "one machine with an address of each kind",
        "IPv6 alone",
        "machines with an address of each kind",
    ],
)
def test_what_is_dialled(records: list[str], before: list[str], now: list[str]) -> None:
    assert dialled(records, before) == now


def test_no_more_services_are_dialled_than_there_may_be() -> None:
    assert len(dialled([f"10.0.{i >> 8}.{i & 255}" for i in range(600)])) == MOST_RECORDS
