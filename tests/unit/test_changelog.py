"""CHANGELOG.md is what docs/releasing.md says of it: Keep a Changelog's sections, once each."""

from __future__ import annotations

from pathlib import Path

PAGE = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
SECTIONS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Upgrading"]


def releases() -> list[str]:
    return PAGE.split("\n## ")[1:]


def sections_of(release: str) -> list[str]:
    return [line.removeprefix("### ") for line in release.splitlines() if line.startswith("### ")]


def test_every_release_has_sections_of_known_names_once_and_in_order() -> None:
    for release in releases():
        names = sections_of(release)
        assert names == [each for each in SECTIONS if each in names]


def test_what_somebody_who_upgrades_has_to_do_is_apart() -> None:
    assert releases()[0].startswith("[Unreleased]")
    known = {name for release in releases() for name in sections_of(release)}
    assert {"Added", "Changed", "Fixed", "Upgrading"} <= known
