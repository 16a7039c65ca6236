"""What each of llama.cpp's tests of its server is expected to do, and how a run differs from it.

Every test is expected to pass unless a row of `expectations.toml` names it.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Server = Literal["outrider", "llama-server"]
Outcome = Literal["passed", "failed", "skipped"]
# Where tests fail: with Outrider only, with both servers on the bundled model, or with llama-server
# on the bundled model only.
Kind = Literal["here", "both", "there", "not run"]

_FAILS_WITH: dict[Server, tuple[Kind, ...]] = {
    "outrider": ("here", "both"),
    "llama-server": ("both", "there"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """Tests that do not pass, and why."""

    kind: Kind
    reason: str
    tests: tuple[str, ...]  # ids, or beginnings of ids followed by *

    def names(self, test: str) -> bool:
        """Return whether a test, such as `test_basic.py::test_no_ui`, is one of them."""
        return any(_names(name, test) for name in self.tests)


def _names(name: str, test: str) -> bool:
    return test.startswith(name[:-1]) if name.endswith("*") else test == name


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcomes of a run beside the rows."""

    counts: Counter[str]  # by outcome; of those that failed and were not run, by kind
    by_row: Counter[Row]
    failed_unexpectedly: tuple[str, ...]
    passed_unexpectedly: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether every test did what was expected."""
        return not (self.failed_unexpectedly or self.passed_unexpectedly)


def read_rows(text: str) -> list[Row]:
    """Return the rows of a TOML file. Raises ValueError for a wrong one."""
    rows = [
        Row(entry["kind"], entry["reason"], tuple(entry["tests"]))
        for entry in tomllib.loads(text)["row"]
    ]
    for row in rows:
        if row.kind not in get_args(Kind) or not row.reason or not row.tests:
            raise ValueError(f"wrong row: {row}")
    return rows


def row_of(test: str, rows: Sequence[Row]) -> Row | None:
    """Return the first row that names this test."""
    return next((row for row in rows if row.names(test)), None)


def nameless(tests: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Return what stands in a row and names none of all tests."""
    return [
        name for row in rows for name in row.tests if not any(_names(name, test) for test in tests)
    ]


def not_run(tests: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Return the tests that are left out."""
    return [test for test in tests if (row := row_of(test, rows)) and row.kind == "not run"]


def compare(outcomes: Mapping[str, Outcome], rows: Sequence[Row], server: Server) -> Comparison:
    """Compare the outcomes of all tests with the rows; those that were not run are `skipped`."""
    counts: Counter[str] = Counter()
    by_row: Counter[Row] = Counter()
    failed, passed = [], []
    for test, outcome in outcomes.items():
        row = row_of(test, rows)
        fails = row is not None and row.kind in _FAILS_WITH[server]
        if outcome == "failed" and not fails:
            failed.append(test)
        if outcome == "passed" and fails:
            passed.append(test)
        agrees = row is not None and (outcome == "failed" if fails else row.kind == "not run")
        if row is not None and agrees:
            by_row[row] += 1
            counts[row.kind] += 1
        else:
            counts[outcome] += 1
    return Comparison(counts, by_row, tuple(failed), tuple(passed))


def report(comparison: Comparison) -> Iterator[str]:
    """Yield the lines for a reader: every row with its count, then what was not expected."""
    for row, count in comparison.by_row.most_common():
        yield f"{row.kind:8} {count:4}  {row.reason}"
    for title, tests in (
        ("expected to pass, failed:", comparison.failed_unexpectedly),
        ("expected to fail, passed:", comparison.passed_unexpectedly),
    ):
        if tests:
            yield title
            yield from (f"  {test}" for test in tests)
    yield ", ".join(f"{count} {what}" for what, count in comparison.counts.most_common())
