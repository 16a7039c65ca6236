"""What to do where llama.cpp is built for CUDA and finds no driver. Pure.

A build with plug-ins loads, and computes on the CPU; of another one not even the library loads.
"""

from __future__ import annotations


def driver_advice(error: str) -> str:
    """Return what to do about a library that is not loaded for want of NVIDIA's driver; else ""."""
    if "libcuda.so" not in error:
        return ""
    return (
        "it is built for CUDA, and NVIDIA's driver is not here: a container gets the host's with "
        "--gpus all (docker, with NVIDIA's Container Toolkit) or nvidia.com/gpu (Kubernetes)"
    )
