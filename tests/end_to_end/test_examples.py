"""The examples, and the Python of the guide to gRPC, run against the bundled pair."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import PATIENCE, environment

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "reference" / "python-and-grpc.md"
ADDRESS = "127.0.0.1:50060"
"""What the guide prints."""

SHOWS = {
    "stream.py": r"\n(stop sequence|token limit): \d+ tokens, \d+ of \d+ drafted accepted\n$",
    "jobs.py": r"^((token limit|end of text): .+\n){3}cancelled: .+\n$",
    "chat.py": r"^((plain|drafted|corrected|bonus) +[01]\.\d{3}  of b.+\n){1,12}$",
}


def run(*words: str) -> str:
    """Return what a Python program prints; nothing may be on standard error."""
    told = subprocess.run(
        [sys.executable, *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (told.returncode, told.stderr) == (0, "")
    return told.stdout


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_an_example_runs_and_shows_what_it_is_for(example: str, orchestrator: str) -> None:
    assert re.search(SHOWS[example], run(str(ROOT / "examples" / example), orchestrator))


def test_the_python_of_the_guide_prints_what_the_guide_says(orchestrator: str) -> None:
    """Word for word where no token is drawn: those need not be the same on another processor."""
    blocks = re.findall(r"^```python\n(.*?)^```\n\n```\n(.*?)^```", GUIDE.read_text(), re.M | re.S)
    program = "\n".join(block for block, _ in blocks).replace(ADDRESS, orchestrator)
    shown = run("-c", program).splitlines()
    of_context, of_texts = blocks[-3][1].splitlines(), blocks[-1][1].splitlines()
    assert shown[0] == blocks[0][1].splitlines()[0]
    assert shown[-len(of_texts) :] == of_texts
    assert set(of_context) <= set(shown)
