"""Values of files that change while a process runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outrider.errors import InvalidConfig
from outrider.file_values import Reread


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0  # every look is a second later
        return self.now


def read_word(path: Path) -> str:
    try:
        word = path.read_text()
    except OSError:
        raise InvalidConfig("--word", f"cannot read {path}") from None
    if not word.isalpha():
        raise InvalidConfig("--word", f"{path} is no word")
    return word


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(tmp_path: Path):
    path, count = tmp_path / "word", 0

    def read() -> str:
        nonlocal count
        count += 1
        return read_word(path)

    path.write_text("one")
    word = Reread([path], read, Clock())
    assert [word() for _ in range(5)] == ["one"] * 5 and count == 1
    path.write_text("another")
    assert [word() for _ in range(5)] == ["another"] * 5 and count == 2


def test_a_file_that_takes_the_place_of_another_is_seen(tmp_path: Path):
    path, new = tmp_path / "word", tmp_path / "new"
    path.write_text("one")
    word = Reread([path], lambda: read_word(path), Clock())
    new.write_text("two")  # of one size
    state = path.stat()
    os.utime(new, ns=(state.st_atime_ns, state.st_mtime_ns))  # and of one time
    new.replace(path)
    assert word() == "two"


def test_a_link_that_leads_elsewhere_is_seen(tmp_path: Path):
    """As Kubernetes exchanges the files of a Secret."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "word").write_text(name)
    link = tmp_path / "now"
    link.symlink_to("one")
    word = Reread([link / "word"], lambda: read_word(link / "word"), Clock())
    assert word() == "one"
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").replace(link)
    assert word() == "two"


def test_a_broken_file_is_one_line_and_the_old_value_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    path = tmp_path / "word"
    path.write_text("one")
    word = Reread([path], lambda: read_word(path), Clock())
    path.write_text("1")
    assert [word() for _ in range(10)] == ["one"] * 10
    message = "a changed file cannot be used; what it held before stays valid"
    assert lines(caplog) == [message]
    assert caplog.records[0].fields["detail"] == f"--word: {path} is no word"  # type: ignore[attr-defined]
    path.unlink()
    assert [word() for _ in range(10)] == ["one"] * 10
    assert lines(caplog) == [message] * 2
    path.write_text("two")
    assert word() == "two" and lines(caplog)[2:] == ["read again"]


def test_files_that_change_while_they_are_read_are_read_once_more(tmp_path: Path):
    """A certificate and its key, one of which was written in between."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("a")
    other.write_text("a")
    between: list[str] = []

    def read() -> str:
        first = read_word(one)
        for content in between:
            one.write_text(content)
            other.write_text(content)
        between.clear()
        return first + read_word(other)

    words = Reread([one, other], read, Clock())
    one.write_text("bb")
    between.append("ccc")
    assert [words() for _ in range(3)] == ["aa", "cccccc", "cccccc"]


def test_the_files_are_looked_at_once_a_second_at_most(tmp_path: Path):
    path, now = tmp_path / "word", 0.0
    path.write_text("one")
    word = Reread([path], lambda: read_word(path), lambda: now)
    path.write_text("another")
    now = 0.9
    assert word() == "one"
    now = 1.1
    assert word() == "another"


def test_a_file_that_cannot_be_used_at_first_is_an_error(tmp_path: Path):
    with pytest.raises(InvalidConfig):
        Reread([tmp_path / "none"], lambda: read_word(tmp_path / "none"))
