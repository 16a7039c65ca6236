"""tests/faults.md: what was found to go wrong, written from the tests that show it no longer does.

Such a test carries `@pytest.mark.fault(section, fault, before=..., now=...)`. The page is read off
the source of the tests, so that it is the same whichever of them run. Between two markers it has
what the last run of the fault matrix wrote (`make chaos`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS / "faults.md"

SECTIONS = {
    "text": "Wrong text",
    "crash": "Crashes",
    "hang": "Hangs and growth without bound",
    "others": "Other callers",
    "restart": "Going away and coming back",
}

_HEAD = """\
# Faults

What review, random tests and hostile peers found, what happened then and what happens now. Each
row names the test that was red before the fault was mended. `tests/unit/test_faults_page.py` keeps
this page equal to the tests; with `REWRITE_FAULTS=1` it writes the page anew.
"""

_BEGIN, _END = "<!-- chaos: begin -->\n", "<!-- chaos: end -->\n"
_MATRIX_HEAD = "\n## The fault matrix\n\n"


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """A row of the page."""

    section: str
    fault: str
    before: str
    now: str
    test: str


def read_faults(folder: Path = TESTS) -> list[Fault]:
    """Return the faults that tests are marked with. Raises ValueError for a bad mark."""
    return [
        fault for path in sorted(folder.rglob("test_*.py")) for fault in _read_file(path, folder)
    ]


def _read_file(path: Path, folder: Path) -> Iterator[Fault]:
    text = path.read_text(encoding="utf-8")
    if "mark.fault" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                    yield _read_mark(mark, f"{path.relative_to(folder)}::{node.name}")


def _read_mark(mark: ast.Call, test: str) -> Fault:
    section, fault = (ast.literal_eval(argument) for argument in mark.args)
    named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in mark.keywords}
    if section not in SECTIONS or named.keys() != {"before", "now"}:
        raise ValueError(f"{test}: a fault has a section of {sorted(SECTIONS)}, before and now")
    return Fault(section, fault, named["before"], named["now"], test)


def read_matrix(page: str) -> str:
    """Return what a page says of the last run of the fault matrix; empty if it says nothing."""
    _, _, rest = page.partition(_BEGIN)
    return rest.partition(_END)[0]


def with_matrix(page: str, matrix: str) -> str:
    """Return a page with another run of the fault matrix at its end."""
    before = page.partition(_MATRIX_HEAD)[0]
    return f"{before}{_MATRIX_HEAD}{_BEGIN}{matrix}{_END}" if matrix else before


def write_page(faults: list[Fault], matrix: str = "") -> str:
    """Return the text of the page, with what a run of the fault matrix wrote."""
    parts = [_HEAD]
    for section, title in SECTIONS.items():
        rows = sorted(fault for fault in faults if fault.section == section)
        if rows:
            parts.append(f"\n## {title}\n\n| fault | before | now | test |\n|---|---|---|---|\n")
            parts += [f"| {r.fault} | {r.before} | {r.now} | `{r.test}` |\n" for r in rows]
    return with_matrix("".join(parts), matrix)
