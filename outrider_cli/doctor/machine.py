"""Whether this machine has a GPU."""

from __future__ import annotations

from pathlib import Path

_GPU_DEVICES = ("/dev/nvidia0", "/dev/nvidiactl")


def has_gpu_device() -> bool:
    """Return whether a driver shows a GPU that llama.cpp could be built for."""
    return any(Path(device).exists() for device in _GPU_DEVICES)
