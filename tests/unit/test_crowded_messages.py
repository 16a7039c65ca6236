"""Messages with more in them than anybody asked for: refused before any of it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outrider import wire, wire_drafts, wire_rounds
from outrider.errors import InvalidRequest
from outrider.messages import MAX_CANDIDATES, MAX_TOP_LOGPROBS, Rows
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as draft
from outrider.v1 import target_service_pb2 as target

SIZE = 50
MANY = 400_000  # more than any message may have; some megabytes


def crowded_candidates() -> draft.DraftResponse:
    listed = common.Candidates(token_ids=[1] * MANY, probabilities=[0.5] * MANY)
    frame = draft.DraftFrame(base=5, position=5, token_ids=[1], candidates=[listed])
    return draft.DraftResponse(frame=frame)


def crowded_support() -> draft.DraftResponse:
    row = draft.DraftDistribution(token_ids=[1] * MANY, weights=[1] * MANY)
    frame = draft.DraftFrame(base=5, position=5, token_ids=[1], distributions=[row])
    return draft.DraftResponse(frame=frame)


def crowded_logprobs() -> target.VerifyResponse:
    listed = common.Logprobs(token_ids=[1] * MANY, log_probabilities=[-1.0] * MANY)
    rows = target.Rows(token_ids=[1], logprobs=[listed])
    return target.VerifyResponse(round=1, position=5, rows=rows)


def crowded_rows() -> target.VerifyResponse:
    return target.VerifyResponse(round=1, position=5, rows=target.Rows(token_ids=[1] * MANY))


def crowded_distribution() -> target.VerifyResponse:
    row = target.RowDistribution(token_ids=[1] * MANY, weights=[1.0] * MANY)
    return target.VerifyResponse(round=1, position=5, rows=target.Rows(distributions=[row]))


def crowded_own_drafts() -> target.VerifyResponse:
    own = [target.OwnDraftTokens()] * MANY
    rows = target.Rows(token_ids=[1])
    return target.VerifyResponse(round=1, position=5, rows=rows, own_drafts=own)


@pytest.mark.fault(
    "hang",
    "A draft or a target sends hundreds of thousands of candidates, log probabilities, ids or rows "
    "where there may be a few",
    before="all were read: 4 MB of candidates for one token held up the event loop for .4 s and "
    "took 82 MB, for every token that was ordered",
    now="they are counted before any is read, and more than may be asked for is nonsense",
)
@pytest.mark.parametrize(
    "make",
    [
        crowded_candidates,
        crowded_support,
        crowded_logprobs,
        crowded_rows,
        crowded_distribution,
        crowded_own_drafts,
    ],
)
def test_what_has_too_much_in_it_is_refused_before_it_is_read(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_few(field: str, token_ids: Any, size: int) -> list[int]:
        assert len(token_ids) < MANY
        return list(token_ids)

    for module in (wire, wire_drafts, wire_rounds):
        monkeypatch.setattr(module, "read_ids", read_few)
    message = make()
    with pytest.raises(InvalidRequest, match=f"{MANY}|more than"):
        if isinstance(message, draft.DraftResponse):
            wire_drafts.read_frame(message, SIZE)
        else:
            wire_rounds.read_answer(message, SIZE)


def test_as_much_as_may_be_asked_for_is_read() -> None:
    listed = [(i, -1.0) for i in range(MAX_TOP_LOGPROBS)]
    candidates = [(i, 0.01) for i in range(MAX_CANDIDATES)]
    rows = Rows(sampled=[1], logprobs=[listed], candidates=[candidates])
    assert wire_rounds.read_rows(wire_rounds.write_rows(rows, 0), 128).logprobs == [listed]
