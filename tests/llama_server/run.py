"""Runs the tests of llama.cpp's server against Outrider and compares with `expectations.toml`.

    LLAMA_CPP_SOURCE=PATH python -m tests.llama_server.run [--server LLAMA_SERVER] [FILE ...]

The source is that of the llama.cpp that llama-cpp-python ships; nothing of it is
changed. With --server the same tests run against a real llama-server on the
same bundled model, which tells apart what fails for the model's sake. The exit
code is 0 if every test did what was expected of it. Needs no network.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path

from tests.llama_server.expectations import (
    Outcome,
    compare,
    nameless,
    not_run,
    read_rows,
    report,
)
from tests.llama_server.shim import INSTEAD

HERE = Path(__file__).resolve().parent
TESTS = Path("tools/server/tests")
READ_BY_TESTS = (Path("models"), Path("tools/mtmd"))
_TEST_SECONDS = 120


def prepare(source: Path, folder: Path, server: Path | None) -> dict[str, str]:
    """Lay out the tests in an empty folder and return the environment they run in."""
    shutil.copytree(source / TESTS, folder / TESTS)
    for path in READ_BY_TESTS:
        (folder / path).symlink_to(source / path)
    words = [sys.executable, str(HERE / "shim.py"), *([f"{INSTEAD}{server}"] if server else [])]
    binary = folder / "llama-server"
    binary.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    binary.chmod(0o700)
    (folder / "tmp").mkdir()
    return {
        **os.environ,
        "LLAMA_SERVER_BIN_PATH": str(binary),
        "PYTHONPATH": os.pathsep.join([str(HERE / "stubs"), os.environ.get("PYTHONPATH", "")]),
        "TMPDIR": str(folder / "tmp"),
    }


def run_pytest(folder: Path, environment: dict[str, str], *words: str) -> str:
    """Run pytest in the folder of the tests and return what it printed."""
    quiet = ("-q", "-p", "no:cacheprovider", "-p", "no:asyncio")
    log = folder / "log"
    with log.open("w") as file:
        subprocess.run(
            [sys.executable, "-m", "pytest", *quiet, *words],
            cwd=folder / TESTS,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return log.read_text()


def read_outcomes(junit: str) -> dict[str, Outcome]:
    """Return what a JUnit file says of each test, as in `test_basic.py::test_no_ui`."""
    outcomes: dict[str, Outcome] = {}
    for case in xml.fromstring(junit).iter("testcase"):
        test = f"{case.attrib['classname'].rpartition('.')[2]}.py::{case.attrib['name']}"
        found = {child.tag for child in case}
        bad = found & {"failure", "error"}
        outcomes[test] = "failed" if bad else "skipped" if "skipped" in found else "passed"
    return outcomes


def run_tests(folder: Path, environment: dict[str, str], options: argparse.Namespace) -> bool:
    """Run what is to be run in a prepared folder, report, and return whether all is as expected."""
    rows = read_rows((HERE / "expectations.toml").read_text())
    files = [f"unit/{name}" for name in options.files]
    listing = run_pytest(folder, environment, "--collect-only", *files)
    tests = re.findall(r"^unit/(test_\w+\.py::.*)$", listing, re.MULTILINE)
    if not tests:
        sys.exit(f"no tests were found:\n{listing}")
    gone = [] if files else nameless(tests, rows)
    if gone:
        sys.exit(f"expectations.toml names tests that are not there: {', '.join(gone)}")
    left_out = not_run(tests, rows)
    chosen, junit = folder / "chosen", folder / "junit.xml"
    chosen.write_text("\n".join(f"unit/{test}" for test in tests if test not in left_out))
    run_pytest(
        *(folder, environment, "-p", "no_downloads", "-n", str(options.workers)),
        *(f"--timeout={_TEST_SECONDS}", f"--junit-xml={junit}", f"@{chosen}"),
    )
    outcomes = dict.fromkeys(tests, "skipped") | read_outcomes(junit.read_text())
    comparison = compare(outcomes, rows, "llama-server" if options.server else "outrider")
    print(*report(comparison), sep="\n")
    return comparison.holds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="such as test_basic.py; else all")
    parser.add_argument("--server", type=Path, help="a real llama-server in Outrider's place")
    parser.add_argument("--keep", type=Path, help="an empty folder to leave log and results in")
    parser.add_argument("--workers", type=int, default=2, help="tests at a time")
    options = parser.parse_args()
    source = Path(os.environ.get("LLAMA_CPP_SOURCE", "")).resolve()
    if not (source / TESTS).is_dir():
        sys.exit(f"LLAMA_CPP_SOURCE must name llama.cpp's source, with {TESTS} in it")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        environment = prepare(source, folder, options.server and options.server.resolve())
        sys.exit(not run_tests(folder, environment, options))


if __name__ == "__main__":
    main()
