"""Every claim of docs/threat-model.md names the tests that hold it, and there are such tests."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "| claim |" not in line]
NAME = re.compile(r"`(tests/[a-z_/]+\.py)::(test_\w+)`")


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the tests in a file, by reading it."""
    tree = ast.parse((ROOT / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


def missing(row: str) -> list[str]:
    """Return the tests that a row names and that are not there; a row without any has none."""
    named = NAME.findall(row)
    assert named, f"no test holds this: {row}"
    return [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).is_file() or name not in names_in(path)
    ]


@pytest.mark.parametrize("row", ROWS)
def test_a_claim_names_tests_that_exist(row: str):
    assert missing(row) == []


def test_everybody_has_claims_of_their_own():
    sections = PAGE.split("\n## ")[1:]
    names = [section.splitlines()[0] for section in sections]
    assert names == [
        *("The network", "A client", "A draft", "A target", "A file", "Another user of the host"),
    ]
    for section in sections:
        assert len([line for line in section.splitlines() if line in ROWS]) >= 5


def test_a_name_that_no_test_has_is_seen():
    assert missing("| x | `tests/unit/test_threat_model.py::test_nothing_of_the_sort` |")
    assert missing("| x | `tests/unit/test_no_such_file.py::test_x` |")
    with pytest.raises(AssertionError, match="no test holds this"):
        missing("| x | it is obvious |")
