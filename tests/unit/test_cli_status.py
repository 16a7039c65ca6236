"""What is printed of an orchestrator's state."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest

from outrider.client import Activity, ControllerView, PeerState, PeerStatus, RefusedDraft, Status
from outrider.client.convert import read_status
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider_cli.console import SafeConsole
from outrider_cli.status_table import status_object, status_view, waiting_line
from tests.unit.test_cli_render import MODEL, READY, REFUSED, STATUS

DRAFT = replace(READY, role="draft", address="127.0.0.1:8")
SENT_AWAY = RefusedDraft(
    address="10.0.0.9:4711",
    model_name="small",
    reason="token 17 differs: target 'Ġwritt', draft 'otter'",
    attempt_count=3,
    since_seconds=12.3,
)


def shown(status: Status, width: int = 80) -> list[str]:
    """Return the lines that a terminal of this width shows."""
    console = SafeConsole(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as text:
        console.print(status_view("here:1", status))
    return [line.rstrip() for line in text.get().splitlines()]


def row(peer: PeerStatus) -> str:
    """Return what is said of the only peer."""
    return shown(replace(STATUS, peers=(peer,)))[1]


def test_the_status_shows_what_is_ready_and_what_is_wrong() -> None:
    assert shown(STATUS) == [
        "orchestrator here:1 (version 0.1.0), 1 generation in flight",
        "target  127.0.0.1:7  ready    small, 0.4 ms away",
        "draft   127.0.0.1:8  refused  EOS id differs: target 1, draft 2",
        "not speculating: EOS id differs: target 1, draft 2",
    ]


def test_the_threads_that_were_chosen_are_shown_with_why() -> None:
    chosen = replace(MODEL, thread_choice="14 threads: 147 tokens/s, 87 with 8, 44 with 4")
    peer = replace(DRAFT, model=chosen)
    line = shown(replace(STATUS, peers=(peer,)), width=120)[1]
    assert "0.4 ms away, 14 threads: 147 tokens/s, 87 with 8, 44 with 4" in line


@pytest.mark.parametrize("width", [80, 120])
def test_lines_fit_a_terminal_and_no_word_is_broken(width: int) -> None:
    status = replace(STATUS, refused_drafts=(SENT_AWAY,), text_sources=("suffix", "copy", "ngram"))
    lines = shown(status, width)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert all(word in words for word in SENT_AWAY.reason.split())
    assert " ".join(words).endswith(
        "(3 attempts, 12 s ago) drafts from the text itself (suffix, copy, ngram);"
        " EOS id differs: target 1, draft 2"
    )


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({}, ""),
        ({"generation_count": 2, "joined": True, "trusted": True}, ", drafts for 2"),
        ({"joined": True}, ", joined (untrusted)"),
        ({"level": "string", "shared_mass": 0.583}, ", translates (58% shared)"),
        ({"role": "target", "generation_count": 3}, ", writes 3"),
    ],
)
def test_a_row_has_three_facts_at_most(changes: dict[str, Any], fact: str) -> None:
    assert row(replace(DRAFT, **changes)).endswith(f"ready  small, 0.4 ms away{fact}")


def test_an_address_is_shown_as_it_is_typed() -> None:
    assert row(replace(READY, address="plain://127.0.0.1:7")).startswith("target  127.0.0.1:7  ")


def test_what_others_wrote_gives_a_terminal_no_orders() -> None:
    odd = replace(MODEL, name="\x1b[2J[red]")
    assert "[2J[red], 0.4 ms away" in row(replace(DRAFT, model=odd))


def test_who_drafts_is_in_the_last_line() -> None:
    ready = replace(STATUS, speculating=True, reason="", peers=(READY, DRAFT))
    assert shown(ready)[-1] == "speculating with small"
    sources = replace(ready, text_sources=("suffix", "copy"))
    assert shown(sources)[-1] == "speculating with small and the text itself (suffix, copy)"
    own = replace(READY, model=replace(MODEL, own_draft="tiny"))
    assert shown(replace(ready, peers=(own, DRAFT)))[-1] == "speculating with small, tiny"
    head = messages.PeerStatus(
        role="target",
        state=messages.PEER_STATE_READY,
        model=common.GetModelResponse(
            own_draft=common.OwnDraft(model_name="large", head=common.HEAD_KIND_MTP)
        ),
    )
    told = read_status(messages.GetStatusResponse(speculating=True, peers=[head]))
    assert shown(told)[-1] == "speculating with mtp"
    lone = replace(sources, speculating=False, reason="no draft is configured", peers=(READY,))
    told = "drafts from the text itself (suffix, copy); no draft is configured"
    assert shown(lone)[-1] == told


def test_a_draft_that_is_too_slow_for_its_target_is_named_with_the_target_it_would_help() -> None:
    costs = ((1, 0.01), (8, 0.01), (16, 0.02))
    measured = ControllerView(decode_costs=costs, draft_token_seconds=0.012)
    ready = replace(STATUS, speculating=True, reason="", peers=(READY, DRAFT), controller=measured)
    assert " ".join(shown(ready)[3:]).startswith(
        "speculating with small; a draft of 12 ms a token cannot help a target of 10 ms"
    )
    quick = replace(measured, draft_token_seconds=0.002)
    assert shown(replace(ready, controller=quick))[3:] == ["speculating with small"]
    own = replace(READY, model=replace(MODEL, own_draft="mtp"))
    lone = shown(replace(ready, peers=(own,)))
    assert lone[-1] == "speculating with mtp"  # of whose time nothing is known here


def test_the_object_has_everything() -> None:
    busy = replace(MODEL, activity=Activity(open_seconds=10.0, decode_seconds=9.71))
    status = replace(STATUS, peers=(replace(READY, model=busy),), refused_drafts=(SENT_AWAY,))
    found = json.loads(json.dumps(status_object("here:1", status)))
    assert (found["address"], found["version"], found["speculating"]) == ("here:1", "0.1.0", False)
    [peer] = found["peers"]
    assert (peer["state"], peer["round_trip_seconds"]) == ("ready", 0.0004)
    assert peer["model"]["activity"]["decode_seconds"] == 9.71
    assert peer["model"]["identity"] == MODEL.identity
    assert found["refused_drafts"][0]["reason"] == SENT_AWAY.reason


def test_of_several_peers_of_a_role_one_that_is_ready_stands_for_all():
    lost = replace(READY, address="a:1", state=PeerState.LOST)
    ready = replace(READY, address="b:1")
    assert replace(STATUS, peers=(lost, ready)).peer("target") is ready
    assert replace(STATUS, peers=(lost,)).peer("target") is lost
    assert replace(STATUS, peers=()).peer("target") is None


def test_what_is_waited_for_is_in_the_peers_words():
    assert waiting_line(STATUS) == REFUSED.detail
