"""Tries the installed llama.cpp on the bundled models: a miscompiled one dies by a signal.

With --plugins it also fails where the kernels of every processor should be there and are not: a
wheel from pip's cache may have been built by other rules. With --without-amx it removes the kernels
for AMX first.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from outrider.engine import kernels
from outrider.engine.kernel_trial import Failed, decode_with, difference
from outrider.engine.llama_library import cpu_plugins
from outrider.errors import OutriderError
from outrider_cli.doctor.trial import try_decode

MODELS = Path(__file__).resolve().parent.parent / "models"


def main() -> None:
    paths = sorted(MODELS.glob("*.gguf"))
    if not paths:
        sys.exit(f"check_llama: there is no model in {MODELS.name}/ to try")
    if "--without-amx" in sys.argv:
        for name in kernels.AMX & set(cpu_plugins()):
            cpu_plugins().pop(name).unlink()
    words = "its own kernels"
    try:
        if cpu_plugins():
            words = f"the kernels {_try_plugins(paths)}"
        elif "--plugins" in sys.argv and _should_have_plugins():
            sys.exit("check_llama: this build has kernels for one processor alone")
        for path in paths:
            try_decode(path)
    except (ImportError, OSError, OutriderError, RuntimeError) as error:
        sys.exit(f"check_llama: {error}")
    print(f"OK: llama.cpp decodes {', '.join(path.name for path in paths)} with {words}")


def _should_have_plugins() -> bool:
    return platform.system() == "Linux" and platform.machine() == "x86_64"


def _try_plugins(paths: list[Path]) -> str:
    """Try the best kernels, and the best ones without AMX where those have it; name them."""
    plain = next(name for name in cpu_plugins() if name not in kernels.AMX)
    tried = [plain, *(name for name in cpu_plugins() if name in kernels.AMX)]
    for path in paths:
        results = []
        for name in tried:
            result = decode_with(path, name, threads=2)
            if isinstance(result, Failed):
                sys.exit(f"check_llama: {path.name} with the kernels {name}: {result.reason}")
            results.append(result.rows)
            if fault := difference(results[0], results[-1]):
                sys.exit(f"check_llama: {path.name} with the kernels {name}: {fault}")
    return " and ".join(tried)


if __name__ == "__main__":
    main()
