"""Pieces of runner-up lines: protobuf to values and back, checked on the way in. Pure."""

from __future__ import annotations

from outrider.errors import InvalidRequest
from outrider.messages import MAX_LINES, MAX_PIECES, RunnerUp
from outrider.v1 import draft_service_pb2 as draft
from outrider.wire_checks import at_least, read_ids


def read_runner_ups(frame: draft.DraftFrame, size: int) -> list[RunnerUp]:
    """Return pieces of runner-up lines; a frame with too many is not even looked at."""
    pieces = frame.runner_up_lines
    if len(pieces) > MAX_PIECES:
        raise InvalidRequest("runner_up_lines", f"{len(pieces)}, at most {MAX_PIECES}")
    if sum(len(each.token_ids) for each in pieces) > MAX_PIECES * MAX_LINES:
        raise InvalidRequest("runner_up_lines", f"more than {MAX_PIECES * MAX_LINES} tokens")
    return [_read_runner_up(each, frame.base, size) for each in pieces]


def _read_runner_up(message: draft.RunnerUpLine, base: int, size: int) -> RunnerUp:
    parent = at_least("parent_line", message.parent_line, 0)
    fork = at_least("fork_position", message.fork_position, base)
    return RunnerUp(
        line=at_least("runner_up_lines.line", message.line, parent + 1),
        parent=parent,
        fork=fork,
        position=at_least("runner_up_lines.position", message.position, fork),
        token_ids=read_ids("runner_up_lines.token_ids", message.token_ids, size),
        confidences=message.confidences,
    )


def write_runner_up(piece: RunnerUp) -> draft.RunnerUpLine:
    """Return the message of a piece."""
    return draft.RunnerUpLine(
        line=piece.line,
        parent_line=piece.parent,
        fork_position=piece.fork,
        position=piece.position,
        token_ids=piece.token_ids,
        confidences=piece.confidences,
    )
