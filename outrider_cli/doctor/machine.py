"""What this machine has: versions of packages, and a GPU as its driver shows it."""

from __future__ import annotations

import platform
import re
from pathlib import Path

_GPU_DEVICES = ("/dev/nvidia0", "/dev/nvidiactl")
_DRIVER = Path("/proc/driver/nvidia/version")


def has_gpu_device() -> bool:
    """Return whether a driver shows a GPU that llama.cpp could be built for."""
    return any(Path(device).exists() for device in _GPU_DEVICES)


def nvidia_driver(path: Path = _DRIVER) -> str:
    """Return the version of NVIDIA's driver; nothing where there is none."""
    try:
        first = path.read_text(errors="replace").partition("\n")[0]
    except OSError:
        return ""
    found = re.search(r" (\d+\.\d+(?:\.\d+)?) ", first)
    return found[1] if found else ""


def version_of(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def pinned_version() -> str:
    """Return the version that the extra `llama` asks for."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        wanted = requires("outrider") or []
    except PackageNotFoundError:
        return ""
    words = [one.partition(";")[0].strip() for one in wanted]
    pins = [one.partition("==")[2] for one in words if one.startswith("llama-cpp-python==")]
    return pins[0] if pins else ""


def versions() -> dict[str, str]:
    import outrider

    return {
        "Python": platform.python_version(),
        "outrider": outrider.__version__,
        "grpcio": version_of("grpcio"),
        "llama-cpp-python": version_of("llama-cpp-python"),
        platform.system(): f"{platform.release()} {platform.machine()}",
    }
