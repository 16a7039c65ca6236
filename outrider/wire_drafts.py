"""Orders and frames: what a draft is asked and sends, checked on the way in. Pure.

Readers raise InvalidRequest with the field's name.
"""

from __future__ import annotations

import numpy as np

from outrider.distribution import MAX_WEIGHT, Distribution
from outrider.errors import InvalidRequest
from outrider.messages import MAX_DRAFT, MAX_LINES, MAX_PIECES, Frame, Order, RunnerUp
from outrider.v1 import draft_service_pb2 as draft
from outrider.wire import (
    read_candidates,
    read_hidden_rows,
    read_span,
    write_candidates,
    write_hidden_rows,
    write_span,
)
from outrider.wire_checks import at_least, read_ids, within

MAX_SUPPORT = 4096
"""Entries of one draft distribution at most."""


def read_order(message: draft.DraftOrder, size: int) -> Order:
    """Return an order of ids in [0, size)."""
    number = at_least("order", message.order, 1)
    span = read_span("committed", message.committed, size)
    until = at_least("draft_until", message.draft_until, 0)
    if span.end == 0:
        raise InvalidRequest("committed", "holds no token to continue")
    if until > span.end + MAX_DRAFT:
        raise InvalidRequest("draft_until", f"at most {MAX_DRAFT} past the committed text")
    frame_tokens = message.frame_token_count
    if not 0 <= frame_tokens <= MAX_DRAFT:
        raise InvalidRequest("frame_token_count", f"must be in [0, {MAX_DRAFT}]")
    stop_below = message.stop_below_confidence
    if not 0 <= stop_below <= 255:
        raise InvalidRequest("stop_below_confidence", "must be in [0, 255]")
    lines = message.parallel_line_count
    if not 0 <= lines <= MAX_LINES:
        raise InvalidRequest("parallel_line_count", f"must be in [0, {MAX_LINES}]")
    split = within("split_probability", message.split_probability, 0, 1)
    rows = read_hidden_rows(message.hidden_rows)
    if rows.end >= span.end:
        raise InvalidRequest("hidden_rows", f"end at {rows.end}, the text at {span.end}")
    return Order(number, span, until, frame_tokens, stop_below, max(1, lines), split, rows)


def write_order(order: Order) -> draft.DraftRequest:
    """Return the message of an order."""
    return draft.DraftRequest(
        order=draft.DraftOrder(
            order=order.number,
            committed=write_span(order.committed),
            draft_until=order.draft_until,
            frame_token_count=order.frame_tokens,
            stop_below_confidence=order.stop_below,
            parallel_line_count=order.line_count if order.line_count > 1 else 0,
            split_probability=order.split_chance,
            hidden_rows=write_hidden_rows(order.rows),
        )
    )


def read_frame(message: draft.DraftResponse, size: int) -> Frame:
    """Return a frame of ids in [0, size)."""
    frame = message.frame
    if len(frame.token_ids) > MAX_DRAFT:  # of one order; a longer one is not even looked at
        raise InvalidRequest("token_ids", f"{len(frame.token_ids)}, at most {MAX_DRAFT}")
    if frame.distributions and len(frame.distributions) != len(frame.token_ids):
        raise InvalidRequest("distributions", "needs one for every token")
    return Frame(
        base=at_least("base", frame.base, 0),
        position=at_least("position", frame.position, frame.base),
        token_ids=read_ids("token_ids", frame.token_ids, size),
        confidences=frame.confidences,
        rows=[
            _read_draft_row(row, token_id, size)
            for row, token_id in zip(frame.distributions, frame.token_ids, strict=False)
        ],
        completed=message.completed_order,
        candidates=read_candidates(frame.candidates, size, len(frame.token_ids)),
        line=at_least("line", frame.line, 0),
        runner_ups=_read_runner_ups(frame, size),
    )


def write_frame(frame: Frame) -> draft.DraftResponse:
    """Return the message of a frame."""
    return draft.DraftResponse(
        frame=draft.DraftFrame(
            base=frame.base,
            position=frame.position,
            token_ids=frame.token_ids,
            confidences=frame.confidences,
            distributions=[
                draft.DraftDistribution(
                    token_ids=row.token_ids.tolist(), weights=row.weights.astype(int).tolist()
                )
                for row in frame.rows
            ],
            candidates=write_candidates(frame.candidates),
            line=frame.line,
            runner_up_lines=map(_write_runner_up, frame.runner_ups),
        ),
        completed_order=frame.completed,
    )


def _read_draft_row(message: draft.DraftDistribution, token_id: int, size: int) -> Distribution:
    """Return a row that cannot bias the rejection rule: anything odd about it is an error."""
    if len(message.token_ids) > MAX_SUPPORT:  # it is not even looked at
        raise InvalidRequest("distributions", f"more than {MAX_SUPPORT} ids")
    ids = read_ids("distributions.token_ids", message.token_ids, size)
    weights = list(message.weights)
    if not 0 < len(ids) == len(weights) <= MAX_SUPPORT or len(set(ids)) != len(ids):
        raise InvalidRequest("distributions", "needs distinct ids and as many weights")
    if min(weights) < 1 or max(weights) > MAX_WEIGHT or token_id not in ids:
        raise InvalidRequest("distributions", "a weight is out of range, or the token not listed")
    return Distribution(np.array(ids, np.int32), np.array(weights, np.float64))


def _read_runner_ups(frame: draft.DraftFrame, size: int) -> list[RunnerUp]:
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


def _write_runner_up(piece: RunnerUp) -> draft.RunnerUpLine:
    """Return the message of a piece."""
    return draft.RunnerUpLine(
        line=piece.line,
        parent_line=piece.parent,
        fork_position=piece.fork,
        position=piece.position,
        token_ids=piece.token_ids,
        confidences=piece.confidences,
    )
