"""Makes one mistake at a time in a copy of the code, and sees that the tests named for it fail.

    make mutations
    make mutations ONLY=noise    those whose sentence or file has this in it

First the tests must pass as the code is. What comes out of a mistake is `caught`, or `SURVIVED`, or
`NOT TRIED` where its text is not there exactly once or the tests could not run. Any but the first
makes the exit status 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.mutations.mistakes import MISTAKES, Mistake

ROOT = Path(__file__).resolve().parents[2]

_PASSED, _FAILED = 0, 1  # pytest's exit statuses; all others say that it could not run the tests


def chosen(mistakes: Iterable[Mistake], part: str) -> list[Mistake]:
    """Return the mistakes that have `part` in their sentence or their file."""
    return [each for each in mistakes if part in each.what or part in each.file]


def verdict(status: int) -> str:
    """Return what pytest's exit status says about a mistake."""
    return {_PASSED: "SURVIVED", _FAILED: "caught"}.get(status, "NOT TRIED")


def first_failed(output: str) -> str:
    """Return the test that failed first, by pytest's summary; empty if there is none."""
    failed = (line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR ")))
    return next(failed, "").partition(" - ")[0].partition(" ")[2]


class Copy:
    """The code as it is, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in names.strip("\0").split("\0"):
            if (ROOT / name).is_file():  # not one that was removed just now
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        # Python and its child processes must not read another copy, nor the code before a mistake:
        # what is compiled here counts only while the source has the hash that it had.
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("OUTRIDER")},
            "PYTHONPATH": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        found = self._python("-c", "import outrider; print(outrider.__file__)").stdout
        assert Path(found.strip()).is_relative_to(folder.resolve()), (
            f"the copy is not used: {found}"
        )
        self._python("-m", "compileall", "-q", "--invalidation-mode", "checked-hash", ".")

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def test(self, tests: Iterable[str]) -> tuple[int, str]:
        """Run tests up to the first that fails; return pytest's exit status and output."""
        options = ("-x", "-q", "--tb=no", "--timeout=120", "-p", "no:cacheprovider")
        done = self._python("-m", "pytest", *options, *tests)
        return done.returncode, done.stdout

    def try_mistake(self, mistake: Mistake) -> tuple[str, str]:
        """Return what comes out of a mistake, and why or where; the code is as before then."""
        file = self._folder / mistake.file
        text = file.read_text(encoding="utf-8")
        if text.count(mistake.old) != 1:
            return "NOT TRIED", f"the text is {text.count(mistake.old)} times in {mistake.file}"
        file.write_text(text.replace(mistake.old, mistake.new), encoding="utf-8")
        status, output = self.test(mistake.tests)
        file.write_text(text, encoding="utf-8")
        result = verdict(status)
        where = first_failed(output) if result == "caught" else ", ".join(mistake.tests)
        return result, where if result != "NOT TRIED" else output[-2000:]


def try_all(copy: Copy, mistakes: Sequence[Mistake]) -> bool:
    """Print what comes out of each mistake; return whether all were caught."""
    status, output = copy.test(dict.fromkeys(test for each in mistakes for test in each.tests))
    if status != _PASSED:
        print(output, "The tests must pass before anything is changed.", sep="\n")
        return False
    caught = 0
    for mistake in mistakes:
        begin = time.monotonic()
        result, where = copy.try_mistake(mistake)
        caught += result == "caught"
        print(f"{result:9} {time.monotonic() - begin:4.0f} s  {mistake.what}", flush=True)
        print(f"{'':18}{where}", flush=True)
    print(f"{caught} of {len(mistakes)} mistakes were caught")
    return caught == len(mistakes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="WORDS", help="of the sentence or the file")
    parser.add_argument("--list", action="store_true", help="print the mistakes and make none")
    options = parser.parse_args()
    mistakes = chosen(MISTAKES, options.only)
    if not mistakes:
        sys.exit(f"no mistake has {options.only!r} in it")
    if options.list:
        for each in mistakes:
            print(f"{each.file}: {each.what}")
        return
    with tempfile.TemporaryDirectory(prefix="outrider-mutations-") as folder:
        sys.exit(not try_all(Copy(Path(folder)), mistakes))


if __name__ == "__main__":
    main()
