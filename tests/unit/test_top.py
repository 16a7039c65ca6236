"""What `outrider top` shows of the states of an orchestrator."""

from __future__ import annotations

import io
from dataclasses import replace

from outrider.client import (
    Activity,
    ControllerView,
    GenerationView,
    ModelInfo,
    PeerState,
    PeerStatus,
    RefusedDraft,
    Status,
)
from outrider_cli.console import SafeConsole
from outrider_cli.top import TopView

MODEL = ModelInfo(
    name="large",
    description="",
    parameter_count=1,
    weight_byte_count=1,
    context_token_count=512,
    session_count=4,
    thread_count=2,
    numerics_profile="exact",
    identity="0a",
    load_seconds=0.5,
    activity=Activity(open_seconds=10.0, decode_seconds=5.0, open_session_count=2),
)
TARGET = PeerStatus(
    role="target",
    address="a:1",
    state=PeerState.READY,
    detail="",
    model=MODEL,
    round_trip_seconds=0.0004,
    generation_count=2,
)
DRAFT = PeerStatus(
    role="draft",
    address="b:1",
    state=PeerState.READY,
    detail="",
    model=replace(MODEL, name="small"),
    round_trip_seconds=0.02,
    joined=True,
    generation_count=2,
    tokens_per_second=310.0,
)
STATUS = Status(
    version="1.2.3",
    active_generation_count=3,
    peers=(TARGET, DRAFT),
    speculating=True,
    reason="",
    controller=ControllerView(acceptance=0.73),
    job_count=1,
    generated_token_count=1000,
    generations=(
        GenerationView(age_seconds=4.0, prompt_token_count=20, token_count=100, speculates=True),
        GenerationView(age_seconds=0.5, prompt_token_count=0, token_count=0, speculates=False),
    ),
)


def shown(view: TopView, width: int = 120) -> list[str]:
    screen = io.StringIO()
    SafeConsole(file=screen, width=width).print(view.frame())
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def later(status: Status, tokens: int) -> Status:
    return replace(status, generated_token_count=status.generated_token_count + tokens)


def test_a_frame_shows_targets_drafts_generations_and_rates() -> None:
    view = TopView("here:1")
    view.note(STATUS, 10.0)
    busy = replace(
        MODEL, activity=Activity(open_seconds=12.0, decode_seconds=6.5, open_session_count=3)
    )
    view.note(replace(later(STATUS, 60), peers=(replace(TARGET, model=busy), DRAFT)), 12.0)
    assert shown(view) == [
        "here:1  version 1.2.3  speculating",
        "30 tokens/s   3 in flight   1 waiting   jobs 1   acceptance 73%   1060 tokens so far",
        "",
        "target  state  model  texts  open  busy  round trip",
        "a:1     ready  large      2   3/4   75%      0.4 ms",
        "",
        "draft  state  model  texts  tokens/s          round trip",
        "b:1    ready  small      2       310  joined     20.0 ms",
        "",
        "in flight since  prompt  tokens  tokens/s  drafts",
        "4.0 s                20     100        25  yes",
        "0.5 s                         0       0.0  no",
        "and 1 more",
    ]


def test_a_single_look_has_no_rates() -> None:
    view = TopView("here:1")
    view.note(STATUS, 10.0)
    assert shown(view)[1].startswith("- tokens/s")
    assert "50%" in shown(view)[4]  # since the start


def test_an_orchestrator_that_was_started_again_has_no_rate_at_first() -> None:
    view = TopView("here:1")
    view.note(STATUS, 10.0)
    view.note(replace(STATUS, generated_token_count=5), 11.0)
    assert shown(view)[1].startswith("- tokens/s")


def test_what_is_away_is_shown_until_it_is_back() -> None:
    view = TopView("here:1")
    assert shown(view) == ["here:1  asking"]
    view.note(STATUS, 10.0)
    view.lose("no orchestrator answers at here:1")
    assert shown(view) == ["here:1  no orchestrator answers at here:1"]
    view.note(STATUS, 12.0)
    assert len(shown(view)) > 10


def test_what_is_wrong_with_a_peer_is_shown_and_gives_no_orders() -> None:
    lost = replace(
        TARGET, state=PeerState.LOST, detail="gone [red]away\x1b[2J", model=None, generation_count=0
    )
    refused = RefusedDraft(
        address="c:1", model_name="x", reason="token 17 differs", attempt_count=2, since_seconds=3.0
    )
    status = replace(
        STATUS,
        peers=(lost,),
        refused_drafts=(refused,),
        reason="lost\x1b[2J it",
        version="1\x1b[3J",
    )
    view = TopView("here:1")
    view.note(status, 10.0)
    text = "\n".join(shown(view))
    assert "a:1: gone [red]away" in text and "\x1b" not in text
    assert "c:1: token 17 differs" in text and "sent away" in text
    assert "version 1[3J  lost[2J it" in text


def test_a_narrow_screen_is_no_reason_to_fail() -> None:
    view = TopView("here:1")
    view.note(STATUS, 10.0)
    assert all(len(line) <= 30 for line in shown(view, width=30))
