"""The tests that tests/promises.md names are there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_every_promise_is_held_by_tests_that_exist() -> None:
    page = (TESTS / "promises.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    promises = [line for line in rows if line != "| promise | tests |"]
    held = [re.findall(r"`(\w+/test_\w+\.py)`", line) for line in promises]
    assert held and all(held)
    assert [name for files in held for name in files if not (TESTS / name).is_file()] == []
