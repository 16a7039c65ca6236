"""What is known of a pair before its first round."""

from __future__ import annotations

import pytest

from orchestrator.pair import shares_cores
from outrider.v1 import common_pb2 as common

HERE, THERE = b"this machine", b"that machine"


@pytest.mark.parametrize(
    ("target", "draft", "shared"),
    [
        ((HERE, b"0-1"), (HERE, b"0-1"), True),
        ((HERE, b"0"), (HERE, b"1"), False),
        ((HERE, b""), (HERE, b"1"), True),  # on a GPU the target knows no cores, and waits for some
        ((HERE, b""), (HERE, b""), True),
        ((HERE, b"0-1"), (THERE, b"0-1"), False),
        ((b"", b"0-1"), (b"", b"0-1"), False),
    ],
)
def test_a_busy_draft_may_slow_a_target_down_only_on_cores_that_both_use(
    target: tuple[bytes, bytes], draft: tuple[bytes, bytes], shared: bool
) -> None:
    models = [
        common.GetModelResponse(machine_digest=machine, cores_digest=cores)
        for machine, cores in (target, draft)
    ]
    assert shares_cores(*models) is shared
