"""What `doctor` prints: its findings, and a verdict on the set-up."""

from __future__ import annotations

from collections.abc import Sequence

from outrider_cli.doctor.checks import Finding, Severity
from outrider_cli.render import Line, Words
from outrider_cli.terminal import wrapped
from outrider_cli.verdict import UNSURE

GAIN = "drafts"
"""The check of what drafts are expected to gain."""

_BUSY_SHARE = 0.2
"""Of all cores' time, taken by others. At load averages of 5 to 7 on two cores, forecasts of one
pair said that drafts pay and that they do not."""

_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}
_INDENT = " " * 18


_BUSY = "The machine is too busy to say whether drafts pay; try again when it is not."


def judge_gain(ratio: float, others_share: float = 0.0, slow: str = "") -> Finding:
    """Return whether drafts pay by a forecast, from times of a machine that nothing else used.

    `slow` says which target a draft is too slow for.
    """
    if others_share > _BUSY_SHARE:
        message = _BUSY
    elif ratio > 1 + UNSURE:
        message = "Drafts are expected to help here; outrider bench measures how much."
    else:
        message = "Drafts are not expected to save time here; then none are made."
        message += f" {slow[0].upper()}{slow[1:]}." if slow else ""
    return Finding(GAIN, Severity.OK, message)


def judge_head_gain(least: float | None, others_share: float = 0.0) -> Finding:
    """Return from which acceptance on a head pays by a forecast; `least` None: it never does."""
    if others_share > _BUSY_SHARE:
        message = _BUSY
    elif least is None:
        message = "The head is not expected to save time here, however often it is right."
    else:
        message = (
            f"The head is expected to help here where {least:.0%} or more of its tokens are"
            " accepted; outrider bench measures how many are."
        )
    return Finding(GAIN, Severity.OK, message)


def all_well(findings: Sequence[Finding]) -> bool:
    """Return whether nothing has to be mended."""
    return all(finding.level is not Severity.PROBLEM for finding in findings)


def finding_lines(findings: Sequence[Finding], width: int | None) -> list[Line]:
    """Return the findings, each with its remedy below it, and the verdict."""
    lines: list[Line] = []
    for finding in findings:
        if finding.check == GAIN:  # which the verdict says
            continue
        name = finding.level.value
        mark = name.upper() if finding.level is Severity.PROBLEM else name
        first, *others = wrapped(finding.message, _room(width))
        lines.append([Words(f"{mark:<8}", _STYLES[name]), Words(f"{finding.check:<10}{first}")])
        lines += [[Words(_INDENT + other)] for other in others]
        lines += [[Words(_INDENT + line, "cyan")] for line in _remedy(finding.remedy, width)]
    return [*lines, *([Words(line)] for line in wrapped(verdict(findings), width))]


def _remedy(text: str, width: int | None) -> list[str]:
    return wrapped(f"-> {text}", _room(width), "   ") if text else []


def _room(width: int | None) -> int | None:
    return None if width is None else width - len(_INDENT)


def verdict(findings: Sequence[Finding]) -> str:
    """Return the last line: whether this set-up is fine, and what drafts may do in it."""
    problems = sum(finding.level is Severity.PROBLEM for finding in findings)
    notes = sum(finding.level is Severity.NOTE for finding in findings)
    if problems:
        them = "the PROBLEM" if problems == 1 else f"the {problems} PROBLEMs"
        return f"This set-up does not work yet: mend {them} above."
    noted = "one note says" if notes == 1 else f"{notes} notes say"
    fine = f"This set-up works; {noted} what could be better." if notes else "This set-up is fine."
    return " ".join([fine, *(each.message for each in findings if each.check == GAIN)])
