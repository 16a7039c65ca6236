"""Commands that other packages bring by entry points: those that work, and those that do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GOOD = 'def hello(name: str) -> None:\n    """Greet somebody."""\n    print(\'hello\', name)\n'


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a package whose commands are one that works and two that do not."""
    about = tmp_path / "beside-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: beside\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[outrider.commands]\n"
        "hello = beside_good:hello\nlacking = beside_good:nothing\nfailing = beside_failing:hello\n"
    )
    (tmp_path / "beside_good.py").write_text(GOOD)
    (tmp_path / "beside_failing.py").write_text(f"{GOOD}\nraise RuntimeError('no such device')\n")
    return tmp_path


def outrider(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command where the packages of a folder are installed, too."""
    run = f"import sys; sys.path.insert(0, {str(site)!r}); from outrider_cli import main; main()"
    return subprocess.run(
        (sys.executable, "-c", run, *words), capture_output=True, text=True, check=False
    )


def test_a_command_of_another_package_is_one_of_ours(site: Path) -> None:
    said = outrider(site, "hello", "you")
    assert (said.returncode, said.stdout, said.stderr) == (0, "hello you\n", "")


def test_a_command_that_cannot_be_loaded_is_a_line_of_the_help_and_hides_no_other(
    site: Path,
) -> None:
    said = outrider(site, "-h")
    assert (said.returncode, said.stderr) == (0, "")
    rows = [line.split() for line in said.stdout.splitlines()]
    shown = {row[1]: row[2:4] for row in rows if len(row) > 3}
    assert shown["hello"] == ["Greet", "somebody."]
    assert shown["failing"] == shown["lacking"] == ["Not", "there:"]
    assert {"generate", "bench", "config"} <= shown.keys()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("failing", "from beside_failing: RuntimeError: no such device"),
        ("lacking", "from beside_good: AttributeError: "),
    ],
)
@pytest.mark.parametrize("words", [(), ("--help",), ("--users", "4", "x")])
def test_a_command_that_cannot_be_loaded_says_why_in_a_line(
    site: Path, command: str, reason: str, words: tuple[str, ...]
) -> None:
    said = outrider(site, command, *words)
    assert (said.returncode, said.stdout) == (1, "")
    [line] = said.stderr.splitlines()
    assert line.startswith(f"outrider: {command}: cannot be loaded {reason}")


def test_a_command_that_is_not_installed_says_so_in_a_line() -> None:
    run = (
        "import importlib.metadata as metadata; metadata.entry_points = lambda group: ();"
        "from outrider_cli import main; main()"
    )
    said = subprocess.run(
        (sys.executable, "-c", run, "bench", "--users", "4"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr == "outrider: bench: is not installed\n"
