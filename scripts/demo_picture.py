"""Records `outrider demo` on a terminal of its own and draws docs/images/demo.svg from that.

The asciicast stays in build/demo-picture/, beside asciinema; svg-term-cli comes from npm. What is
shown is one run as it was, but for pauses, which are shortened.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "demo-picture"
CAST, SVG = FOLDER / "demo.cast", ROOT / "docs" / "images" / "demo.svg"
ASCIINEMA, SVG_TERM = "asciinema==2.4.0", "svg-term-cli@2.1.1"
COLUMNS, ROWS = 100, 31
FRAME_SECONDS = 0.2  # what is written meanwhile is one frame
MOST_SECONDS = 1.0  # of a pause
LAST_SECONDS = 15.0  # of the table, before it begins again
MOST_BYTES = 200_000  # of the picture, which every visitor of the README loads

Event = tuple[float, str]


def main() -> None:
    """Record and draw."""
    if not (FOLDER / "asciinema").exists():
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--target", str(FOLDER))
        subprocess.run((*pip, ASCIINEMA), check=True)
    # Progress goes to standard error, and would be hundreds of frames.
    command = f"{sys.executable} -P -m outrider_cli demo 2>/dev/null"
    size = ("--cols", str(COLUMNS), "--rows", str(ROWS))
    subprocess.run(
        (sys.executable, "-m", "asciinema", "rec", "--overwrite", *size, "-c", command, str(CAST)),
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{FOLDER}", "TERM": "xterm-256color"},
        check=True,
    )
    head, *lines = CAST.read_text().splitlines()
    events = [(time, text) for time, _, text in map(json.loads, lines)]
    if not any("2 machines" in text for _, text in events):
        sys.exit(f"the demo did not come to its end: see {CAST}")
    short = FOLDER / "short.cast"
    short.write_text("\n".join([head, *map(json.dumps, frames(events))]) + "\n")
    drawn = FOLDER / "demo.svg"
    words = ("npx", "--yes", SVG_TERM, "--window", "--in", str(short), "--out", str(drawn))
    subprocess.run(words, check=True)
    if drawn.stat().st_size > MOST_BYTES:
        sys.exit(f"{drawn} has {drawn.stat().st_size} bytes; {MOST_BYTES} are the most")
    drawn.replace(SVG)
    print(f"{SVG.relative_to(ROOT)}: {SVG.stat().st_size} bytes")


def frames(events: Sequence[Event]) -> Iterator[tuple[float, str, str]]:
    """Yield the events of an asciicast: few a second, no long pauses, and time for the end."""
    now = before = 0.0
    shown = ""
    for time, text in events:
        if shown and time - before >= FRAME_SECONDS:
            now += min(time - before, MOST_SECONDS)
            yield now, "o", shown
            before, shown = time, ""
        shown += text
    yield now + FRAME_SECONDS, "o", shown
    yield now + LAST_SECONDS, "o", ""


if __name__ == "__main__":
    main()
