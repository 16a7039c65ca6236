"""How the commands show a numerics profile. Pure."""

from __future__ import annotations


def show_profile(profile: str, native_ms: float, exact_ms: float) -> str:
    """Return the profile that runs, and what a plain token costs under each; 0 is not known."""
    costs = {"native": native_ms, "exact": exact_ms}
    known = [f"{ms:.1f} ms {name}" for name, ms in costs.items() if ms > 0.0]
    return f"{profile} (a plain token: {', '.join(known)})" if known else profile


def show_kernels(kernels: str) -> str:
    """Return what computes on the CPU, to follow other facts; nothing where that is not known."""
    return f", CPU kernels: {kernels}" if kernels else ""


def show_layout(layout: str) -> str:
    """Return how a cache is laid out, to follow other facts; nothing where that is not known."""
    return f", cache: {layout}" if layout else ""
