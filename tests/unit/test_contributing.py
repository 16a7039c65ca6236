"""What CONTRIBUTING.md and the page on the layout name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATH = re.compile(r"[`(]([\w.]+/[\w./]*|[\w]+\.md)[`)]")
BUILT = (".venv/",)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/layout.md"])
def test_every_path_that_is_named_exists(page: str) -> None:
    named = PATH.findall((ROOT / page).read_text(encoding="utf-8"))
    assert len(named) > 5
    places = (ROOT, (ROOT / page).parent, ROOT / "outrider")
    missing = [
        path
        for path in named
        if not path.startswith(BUILT) and not any((place / path).exists() for place in places)
    ]
    assert missing == []


def test_every_target_of_make_that_is_named_exists() -> None:
    named = set(re.findall(r"`make ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text("utf-8")))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    assert named and named <= targets
