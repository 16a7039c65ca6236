"""What is printed of an orchestrator's state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.client import Activity, PeerState, RefusedDraft
from outrider_cli.render import Words
from outrider_cli.status_table import status_lines, waiting_line
from tests.unit.test_cli_render import MODEL, READY, REFUSED, STATUS


def test_the_status_shows_what_is_ready_and_what_is_wrong():
    lines = ["".join(words.text for words in line) for line in status_lines("here:1", STATUS)]
    assert lines[0] == "orchestrator  here:1  version 0.1.0, 1 generation in flight"
    assert lines[1].startswith(
        "target        127.0.0.1:7  ready       small (0a1b2c3d), 512 tokens"
    )
    assert lines[2].startswith("draft         127.0.0.1:8  refused     EOS id differs")
    assert lines[3] == "not speculating: EOS id differs: target 1, draft 2"


def test_a_draft_that_joined_is_shown_with_its_rate_and_what_it_works_for():
    draft = replace(READY, role="draft", joined=True, generation_count=2, tokens_per_second=310.4)
    draft = replace(draft, trusted=True)
    line = "".join(words.text for words in status_lines("", replace(STATUS, peers=(draft,)))[1])
    assert line.endswith("round trip 0.4 ms, joined, 310 tokens/s for 2 generations")


def test_a_draft_that_joined_and_is_not_trusted_is_shown_with_what_it_is_not_used_for():
    draft = replace(READY, role="draft", joined=True, tokens_per_second=310.4)
    line = "".join(words.text for words in status_lines("", replace(STATUS, peers=(draft,)))[1])
    assert ", joined, not for rejection (--trust-drafts), 310 tokens/s" in line


def test_a_draft_that_translates_is_shown_with_its_level():
    draft = replace(READY, role="draft", level="string", shared_mass=0.583)
    line = "".join(words.text for words in status_lines("", replace(STATUS, peers=(draft,)))[1])
    assert ", translates at string level (58% shared), " in line


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("full", "memory full: rejected drafts cost nothing"),
        ("snapshots", "memory snapshots: up to 4 rejected tokens cost nothing, more a checkpoint "),
        ("checkpoints", "memory checkpoints: a draft costs a checkpoint (2.1 ms), a rejection "),
        ("none", "memory none: a session can only be emptied, so that nothing is drafted"),
        ("unspecified", ""),
    ],
)
def test_the_kind_of_memory_is_shown_with_what_it_limits(kind: str, shown: str):
    model = replace(
        MODEL, rollback_capability=kind, snapshot_token_count=4, checkpoint_milliseconds=2.1
    )
    status = replace(STATUS, peers=(replace(READY, model=model),))
    line = "".join(words.text for words in status_lines("", status)[1])
    assert f"round trip 0.4 ms{f', {shown}' if shown else ''}"[:60] in line
    assert ("memory" in line) == bool(shown)


def test_each_of_several_targets_is_shown_with_what_it_writes_or_why_it_does_not():
    busy = replace(READY, address="a:1", generation_count=3)
    alone = replace(
        READY, address="b:1", state=PeerState.REFUSED, detail="left alone for 5 s: slow"
    )
    status = replace(STATUS, peers=(alone, busy))
    lines = ["".join(words.text for words in line) for line in status_lines("", status)[1:3]]
    assert lines[0] == "target        b:1  refused     left alone for 5 s: slow"
    assert lines[1].endswith("round trip 0.4 ms, writes 3 generations")


def test_of_several_peers_of_a_role_one_that_is_ready_stands_for_all():
    lost = replace(READY, address="a:1", state=PeerState.LOST)
    ready = replace(READY, address="b:1")
    assert replace(STATUS, peers=(lost, ready)).peer("target") is ready
    assert replace(STATUS, peers=(lost,)).peer("target") is lost
    assert replace(STATUS, peers=()).peer("target") is None


def test_drafts_that_were_sent_away_are_shown_with_the_reason():
    stranger = RefusedDraft(
        address="10.0.0.9:4711",
        model_name="small",
        reason="token 17 differs",
        attempt_count=3,
        since_seconds=12.3,
    )
    nameless = replace(stranger, model_name="", reason="answer: must be a model", attempt_count=1)
    status = replace(STATUS, refused_drafts=(stranger, nameless))
    lines = ["".join(words.text for words in line) for line in status_lines("", status)[3:]]
    assert lines == [
        "draft         10.0.0.9:4711  sent away   small: token 17 differs (3 attempts, 12 s ago)",
        "draft         10.0.0.9:4711  sent away   answer: must be a model (1 attempt, 12 s ago)",
        "not speculating: EOS id differs: target 1, draft 2",
    ]


def test_a_target_is_shown_with_the_share_of_its_time_that_goes_into_decodes():
    busy = replace(MODEL, activity=Activity(open_seconds=10.0, decode_seconds=9.71))
    peers = (replace(READY, model=busy),)
    line = "".join(words.text for words in status_lines("", replace(STATUS, peers=peers))[1])
    assert line.endswith("round trip 0.4 ms, 97% of its time in decodes")


def test_a_ready_pair_speculates():
    status = replace(STATUS, peers=(READY,), speculating=True, reason="")
    assert status_lines("here:1", status)[-1] == [Words("speculating")]


def test_what_is_waited_for_is_in_the_peers_words():
    assert waiting_line(STATUS) == REFUSED.detail
