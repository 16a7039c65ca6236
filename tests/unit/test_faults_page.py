"""The page of faults says what the tests of them say."""

from __future__ import annotations

import os

import pytest

from tests.support.faults_page import PAGE, Fault, read_faults, read_matrix, with_matrix, write_page


def test_the_page_has_every_fault_that_a_test_shows() -> None:
    page = write_page(read_faults(), read_matrix(PAGE.read_text(encoding="utf-8")))
    if os.environ.get("REWRITE_FAULTS"):
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page, "REWRITE_FAULTS=1 writes it anew"


def test_the_fault_matrix_stays_where_the_page_is_written_anew() -> None:
    fault = Fault("crash", "x", "a", "b", "test_one.py::test_x")
    page = write_page([fault], "a table\n")
    assert read_matrix(page) == "a table\n"
    assert write_page([fault], read_matrix(page)) == page
    assert read_matrix(with_matrix(page, "another\n")) == "another\n"
    assert write_page([fault]) == with_matrix(page, "")


def test_a_row_names_its_test(tmp_path) -> None:
    (tmp_path / "test_one.py").write_text(
        "@pytest.mark.fault('crash', 'x', before='a', now='b')\nasync def test_x(): ...\n"
    )
    assert read_faults(tmp_path) == [Fault("crash", "x", "a", "b", "test_one.py::test_x")]


def test_a_mark_without_what_was_before_is_refused(tmp_path) -> None:
    (tmp_path / "test_one.py").write_text(
        "@pytest.mark.fault('crash', 'x', now='b')\ndef test_x(): ...\n"
    )
    with pytest.raises(ValueError, match="before and now"):
        read_faults(tmp_path)
