"""Says where models to host will be, whether there is room, and what decodes cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider.engine.footprint import CPU, DeviceShare, Footprint, Gpu
from outrider_cli.doctor.checks import Finding, ModelFile, Severity
from outrider_cli.phrases import plural, show_size

_FULL = 0.8  # of the machine's memory; the rest of the machine needs some too
_LEFT = 1 << 30
"""Bytes of a card that should stay free, for a driver's context and what others do with it: as many
as llama.cpp's own --fit leaves."""

Memory = tuple[int, str]
"""The bytes that a process could take, and what sets that limit: machine or cgroup."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A model to host here, and where its parts will be."""

    role: str
    sessions: int
    footprint: Footprint


def place(role: str, sessions: int, size: int, said: dict[str, Any] | None) -> Placed:
    """Return where a model will be: as llama.cpp said, or else whole in the machine's memory."""
    if said is None:
        whole = DeviceShare(device=CPU, layers=0, weights=size, caches=0, compute=0)
        return Placed(role, sessions, Footprint(shares=(whole,), split_count=1))
    shares = tuple(DeviceShare(**share) for share in said["shares"])
    return Placed(role, sessions, Footprint(**{**said, "shares": shares}))


def judge_models(models: Sequence[ModelFile]) -> list[Finding]:
    """Return whether the files can be loaded."""
    return [_judge_file(model) for model in models]


def _judge_file(model: ModelFile) -> Finding:
    if model.error:
        remedy = "give another file, or fetch it again"
        return Finding("models", Severity.PROBLEM, f"{model.role}: {model.error}", remedy)
    words = f"{model.role}: {model.name}, {show_size(model.size)}"
    context = f", {model.context} tokens of context" if model.context else ""
    return Finding("models", Severity.OK, words + context)


def judge_memory(
    models: Sequence[Placed], gpus: Sequence[Gpu], memory: Memory | None
) -> list[Finding]:
    """Return what is on which device, and whether each has room for it."""
    findings = [_judge_layers(model) for model in models if model.footprint.gpu_layers]
    for gpu in gpus:
        free = gpu.free_bytes if gpu.total_bytes else None
        its = f"{gpu.name} has free"
        findings += _judge_place(gpu.name, models, free, gpu.free_bytes - _LEFT, its)
    if memory is not None:
        available, limit = memory
        its = f"the {limit} has available"
        findings += _judge_place(CPU, models, available, _FULL * available, its)
    return findings


def _judge_layers(model: Placed) -> Finding:
    """Return which layers are on which card, and whether it can compute them."""
    found = model.footprint
    total = sum(share.layers for share in found.shares)
    words = ", ".join(f"{share.layers} on {share.device}" for share in found.shares if share.layers)
    message = f"{model.role}: of {plural(total, 'layer')} {words}"
    if found.split_count <= found.gpu_layers:
        return Finding("gpu", Severity.OK, message)
    message += (
        f"; but a token's decode changes {found.split_count - 1} times between processor and card: "
        f"this build has no kernels there for weights of {found.file_type} or for such a cache"
    )
    remedy = "take another quantisation, or leave --cache-type-k and --cache-type-v out"
    return Finding("gpu", Severity.NOTE, message, remedy)


def _judge_place(
    device: str, models: Sequence[Placed], free: int | None, comfortable: float, whose: str
) -> list[Finding]:
    """Return whether a device has room for what shall be there; nothing where nothing shall."""
    shares = [(model, _share(model, device)) for model in models]
    here = [(model, share) for model, share in shares if share is not None]
    if not here:
        return []
    need = sum(share.weights + share.caches + share.compute for _, share in here)
    parts = "; ".join(_describe_share(model, share) for model, share in here)
    room = f"of the {show_size(free)} that {whose}" if free is not None else f"on {device}"
    message = f"{show_size(need)} {room} ({parts})"
    if free is None or need <= comfortable:
        return [Finding("memory", Severity.OK, message)]
    remedy = "take fewer --sessions, a smaller --ctx or smaller weights, or host the draft on "
    remedy += "another machine" if device == CPU else "the CPU (--draft-n-gpu-layers 0)"
    return [Finding("memory", Severity.NOTE if need <= free else Severity.PROBLEM, message, remedy)]


def _share(model: Placed, device: str) -> DeviceShare | None:
    return next((each for each in model.footprint.shares if each.device == device), None)


def _describe_share(model: Placed, share: DeviceShare) -> str:
    each = show_size(share.caches // model.sessions)
    parts = {
        f"weights {show_size(share.weights)}": share.weights,
        f"{plural(model.sessions, 'session')} of {each}": share.caches,
        f"{show_size(share.compute)} to compute": share.compute,
    }
    return f"{model.role}: {', '.join(words for words, size in parts.items() if size)}"


def judge_decodes(decode_ms: Sequence[tuple[int, float]], draft_ms: float | None) -> list[Finding]:
    """Return what decodes cost where they were measured, the target's by rows."""
    words = []
    if decode_ms:
        shown = [f"{rows}:{ms:.1f}" for rows, ms in decode_ms if rows.bit_count() == 1]
        words.append(f"target {' '.join(shown)} ms by rows")
    if draft_ms is not None:
        words.append(f"draft {draft_ms:.1f} ms a token")
    return [Finding("decodes", Severity.OK, ", ".join(words))] if words else []
