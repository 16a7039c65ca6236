"""Says which head a file to host here carries, or is, and whether it can be used. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outrider.engine.heads import CarriedHead
from outrider.speculation import HeadKind
from outrider_cli.doctor.checks import Finding, ModelFile, Severity
from outrider_cli.phrases import plural, show_size

_CHECK = "head"


def judge_heads(
    files: Sequence[ModelFile], missing: Mapping[str, str], fault_beside: str
) -> list[Finding]:
    """Return what is known of the heads in files.

    `missing` says by kind why this llama.cpp runs no such head, `fault_beside` why a head in a
    file of its own does not go with the target.
    """
    findings = []
    for file in files:
        if file.head is None:
            continue
        unrunnable = missing.get(file.head.head.kind.value, "")
        if file.is_head:
            findings.append(_judge_file(file, file.head, unrunnable or fault_beside))
        elif file.role == "target":
            findings.append(_judge_own(file, file.head, unrunnable, is_used=len(files) == 1))
    return findings


def _judge_own(file: ModelFile, found: CarriedHead, unrunnable: str, is_used: bool) -> Finding:
    """Return whether a target drafts with the head in its file."""
    head = found.head
    if fault := f"{file.name} {head.fault}" if head.fault else unrunnable:
        remedy = "name a draft model, or let drafts come from what texts repeat"
        return Finding(_CHECK, Severity.NOTE, f"{file.role}: {fault}", remedy)
    use = "it drafts in the target's process" if is_used else "not used beside a draft model"
    message = f"{file.role}: {head.kind.words} in its file, {_size(found)}; {use}"
    return Finding(_CHECK, Severity.OK, message)


def _judge_file(file: ModelFile, found: CarriedHead, fault: str) -> Finding:
    """Return which targets a head can read, or why it cannot be used here."""
    head = found.head
    if fault := f"{file.name} {head.fault}" if head.fault else fault:
        remedy = "name the head that was made for this target, or leave --draft-model out"
        return Finding(_CHECK, Severity.PROBLEM, f"{file.role}: {fault}", remedy)
    targets = f"of {head.architecture}, width {head.width}"
    if head.kind is not HeadKind.MTP:
        layers = ", ".join(map(str, head.target_layers))
        targets = f"of width {head.width}, of which it reads the layers {layers}"
    words = f"{file.name} is {head.kind.words}, {_size(found)}, for targets {targets}"
    return Finding(_CHECK, Severity.OK, f"{file.role}: {words}")


def _size(found: CarriedHead) -> str:
    return f"{plural(found.block_count, 'block')} of {show_size(found.weights)}"
