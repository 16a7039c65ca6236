"""CHANGELOG.md is what docs/releasing.md says of it: a section for each release, newest first."""

from __future__ import annotations

import re
from pathlib import Path

from outrider import __version__

PAGE = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
SECTIONS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Upgrading"]


def releases() -> list[str]:
    return PAGE.split("\n## ")[1:]


def test_every_release_has_sections_of_known_names_once_and_in_order() -> None:
    for release in releases():
        names = re.findall(r"^### (.*)$", release, re.M)
        assert names == [each for each in SECTIONS if each in names]
        assert "Upgrading" in names


def test_the_newest_release_is_this_version() -> None:
    assert releases()[0].startswith(f"[{__version__}] - ")
