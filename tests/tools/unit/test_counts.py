"""What tools/counts.py counts, of a small tree whose numbers are known."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import counts

PURE = """
MOST_TOKENS = 64
DOUBT_SECONDS = 0.5
_STEPS, NAME = (1, -2, 1 << 3), "name"
on = True
class Line:
    GROWTH: float = 2.0
    text: str
    def __init__(self) -> None:
        self.end = self._begin = 0
        self.end += 1
class Round:
    pass
"""
SERVICE = """
class Line:
    def read(self) -> None: ...
    async def write(self) -> None: ...
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {
        "outrider/core/line.py": PURE,
        "outrider/v1/line_pb2.py": PURE,
        "draft_service/line.py": SERVICE,
        "tools/outrider_bench/run.py": "A = 1\nB = 2\n",
        "tests/unit/test_line.py": "def test_a(): ...\n",
        "protos/outrider/v1/a.proto": "message VerifyRound {}\n",
        "docs/a.md": "three words here\n",
        "docs/decisions/0001.md": "and two\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_small_tree_is_counted(tree: Path) -> None:
    found = counts.count(tree)
    assert found.lines == {
        "draft_service/": SERVICE.count("\n"),
        "outrider/core/": PURE.count("\n"),
        "tools/outrider_bench/": 2,
    }
    assert found.numbers == {
        "lines: main package": PURE.count("\n") + SERVICE.count("\n"),
        "lines: satellites": 2,
        "lines: tests": 1,
        "lines: core, engine and services": PURE.count("\n") + SERVICE.count("\n"),
        "files: main package": 2,
        "files: core, engine and services": 2,
        "constants: tuned, of core, engine and services": 3,  # MOST_TOKENS is a bound
        "constants: core, engine and services": 4,
        "constants: main package": 4,
        "classes: main package": 3,
        "functions: main package": 3,
        "forms of a request": 0,
        "forms of a round": 3,  # Line, Round, VerifyRound
        "forms of a round's seconds": 0,
        "class names for two things": 1,
        "file names for two things": 1,
        "fields of the largest class": 4,
        "words: docs": 5,
        "words: docs without decisions": 3,
    }
    assert found.names["most fields"][0] == "4 Line: outrider/core/line.py"
    twice = "draft_service/line.py, outrider/core/line.py"
    assert found.names["class names for two things"] == [f"Line: {twice}"]
    assert found.names["file names for two things"] == [f"line.py: {twice}"]


def test_a_form_that_is_gone_is_named(tree: Path) -> None:
    (tree / "protos/outrider/v1/a.proto").unlink()
    gone = "forms of a round that are gone: take them out of tools/counts.py"
    assert "VerifyRound" in counts.count(tree).names[gone]
    assert "Round" not in counts.count(tree).names[gone]


def test_a_revision_stands_beside_the_working_tree(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tree))
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "All of it")):
        subprocess.run((*git, *words), check=True)
    (tree / "docs/b.md").write_text("one more word, and one\n")
    monkeypatch.setattr(counts, "ROOT", tree)
    monkeypatch.setattr("sys.argv", ["counts.py", "--at", "HEAD"])
    counts.main()
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].split() == ["HEAD", "now"]
    [words] = [line for line in shown.splitlines() if line.startswith("words: docs without")]
    assert words.split()[-2:] == ["3", "8"]
