"""Writes docs/reference/openapi.json, what the gateway says of itself.

With --check it says whether the file is up to date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATH = ROOT / "docs" / "reference" / "openapi.json"

sys.path.insert(0, str(ROOT))


def description() -> str:
    """Return the OpenAPI description as text."""
    from gateway.routes import describe

    return json.dumps(describe(), indent=1, sort_keys=True) + "\n"


def main() -> int:
    """Write the file, or check it. Returns the exit status."""
    if "--check" not in sys.argv[1:]:
        PATH.write_text(description(), encoding="utf-8")
        return 0
    if PATH.read_text(encoding="utf-8") == description():
        return 0
    print("docs/reference/openapi.json is out of date: run scripts/openapi.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
