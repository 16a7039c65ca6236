"""Whether malloc's memory is in huge pages, and what a process needs for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.memory import has_huge_pages, huge_pages, tunables_for_huge_pages

ASKS = "glibc.malloc.hugetlb=1"


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("always [madvise] never\n", "madvise"),
        ("[always] madvise never\n", "always"),
        ("always madvise [never]\n", "never"),
        ("", "never"),
    ],
)
def test_the_kernel_says_for_whom_it_has_huge_pages(tmp_path: Path, text: str, mode: str):
    (tmp_path / "enabled").write_text(text)
    assert huge_pages(tmp_path / "enabled") == mode


def test_a_kernel_without_them_has_none(tmp_path: Path):
    assert huge_pages(tmp_path / "enabled") == "never"


@pytest.mark.parametrize(
    ("before", "mode", "libc", "value"),
    [
        (None, "madvise", "glibc 2.36", ASKS),
        (None, "madvise", "glibc 2.35", ASKS),
        ("glibc.malloc.check=3", "madvise", "glibc 2.36", f"glibc.malloc.check=3:{ASKS}"),
        ("glibc.malloc.hugetlb=0", "madvise", "glibc 2.36", None),  # the user decided
        (ASKS, "madvise", "glibc 2.36", None),
        (None, "always", "glibc 2.36", None),
        (None, "never", "glibc 2.36", None),
        (None, "madvise", "glibc 2.34", None),
        (None, "madvise", "glibc", None),
        (None, "madvise", "", None),
        (None, "madvise", "musl 1.2", None),
    ],
)
def test_a_process_asks_for_them_where_that_helps(
    before: str | None, mode: str, libc: str, value: str | None
):
    environment = {} if before is None else {"GLIBC_TUNABLES": before}
    assert tunables_for_huge_pages(environment, mode, libc) == value


@pytest.mark.parametrize(
    ("before", "mode", "has"),
    [
        (None, "always", True),
        (None, "madvise", False),
        (ASKS, "madvise", True),
        (f"glibc.malloc.check=3:{ASKS}", "madvise", True),
        ("glibc.malloc.hugetlb=0", "madvise", False),
        (ASKS, "never", False),
    ],
)
def test_who_asked_has_them(before: str | None, mode: str, has: bool):
    environment = {} if before is None else {"GLIBC_TUNABLES": before}
    assert has_huge_pages(environment, mode) is has
