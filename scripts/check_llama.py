"""Tries the installed llama.cpp on the bundled models: a miscompiled one dies by a signal."""

from __future__ import annotations

import sys
from pathlib import Path

from outrider.errors import OutriderError
from outrider_cli.doctor.probe import try_decode

MODELS = Path(__file__).resolve().parent.parent / "models"


def main() -> None:
    paths = [Path(name) for name in sys.argv[1:]] or sorted(MODELS.glob("*.gguf"))
    if not paths:
        sys.exit(f"check_llama: there is no model in {MODELS.name}/ to try")
    try:
        for path in paths:
            try_decode(path)
    except (ImportError, OSError, OutriderError, RuntimeError) as error:
        sys.exit(f"check_llama: {error}")
    print(f"OK: llama.cpp decodes {', '.join(path.name for path in paths)}")


if __name__ == "__main__":
    main()
