"""Cores of each service's own, as on machines apart."""

from __future__ import annotations

import pytest

from outrider_bench.cores import cores_apart, pinned


@pytest.mark.parametrize(
    ("available", "shared_out"),
    [
        ([], None),
        ([5], None),
        ([0, 1], ([0], [1], [1])),
        ([2, 0, 1], ([0], [2], [1])),
        ([0, 1, 2, 3, 8], ([0, 1, 2], [8], [3])),
    ],
)
def test_the_target_has_what_draft_and_orchestrator_leave(
    available: list[int], shared_out: tuple[list[int], ...] | None
) -> None:
    found = cores_apart(available)
    if shared_out is None:
        assert found is None
    else:
        assert found == dict(zip(("target", "draft", "orchestrator"), shared_out, strict=True))


def test_a_role_runs_on_its_cores_and_any_other_anywhere() -> None:
    cores = {"target": [0, 2]}
    assert pinned(["serve", "it"], cores, "target") == [
        *("taskset", "--cpu-list", "0,2"),
        *("serve", "it"),
    ]
    assert pinned(["serve", "it"], cores, "draft") == ["serve", "it"]
