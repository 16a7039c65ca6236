"""Drafts that are of no use: what the benchmark makes of a model and of a process."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader

from model_making.bad_drafts import run_with_stalls, write_junk

DRAFT = Path(__file__).parents[3] / "models" / "stdlib-draft-q8_0.gguf"

# Tells the longest time that it did not run for, in tenths of a second, by its exit status.
SLEEPER = """
import sys, time
begin = last = time.monotonic()
longest = 0.0
while last - begin < 3.0:
    time.sleep(0.01)
    now = time.monotonic()
    longest, last = max(longest, now - last), now
sys.exit(int(10 * longest))
"""
PARENT = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"


def test_junk_has_the_same_weights_in_other_places(tmp_path: Path) -> None:
    junk = write_junk(DRAFT, tmp_path / "junk.gguf")
    before, after = (GGUFReader(path).tensors for path in (DRAFT, junk))
    moved = 0
    for one, other in zip(before, after, strict=True):
        assert one.name == other.name
        if one.tensor_type.name == "Q8_0":
            moved += not np.array_equal(one.data, other.data)
            np.testing.assert_array_equal(
                np.sort(one.data, axis=None), np.sort(other.data, axis=None)
            )
        else:
            np.testing.assert_array_equal(one.data, other.data)
    assert moved > 3


def test_only_the_draft_among_the_children_is_stopped_and_goes_on_afterwards() -> None:
    # The words of a draft's command line; another child has others.
    for words, stopped in ((["outrider_cli", "draft"], True), (["outrider_cli", "target"], False)):
        command = [sys.executable, "-c", PARENT, "-c", SLEEPER, *words]
        status = run_with_stalls(command, every=0.8, stall=1.9)
        assert (status >= 18) is stopped
