"""The lines of `generate --verbose`: fixed, because people write scripts that read them."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.client import Candidate, DraftEnd, Position, RoundReport, Token
from outrider.speculation import DRAFTERS
from outrider_cli.generate.verbose import round_lines
from outrider_cli.render import branch_style, source_style
from outrider_cli.screen import open_screen, show_lines

THE, KEY, MAIN = Token(284, b"The"), Token(1108, b" key"), Token(2191, b" main")


def report(
    *draft: Token,
    accepted: int,
    target: Token = MAIN,
    committed: int = 11,
    positions: tuple[Position, ...] = (),
    end: DraftEnd = DraftEnd.LENGTH,
    sources: tuple[str, ...] = (),
    numbers: tuple[int, ...] = (),
) -> RoundReport:
    return RoundReport(
        round=3,
        committed_token_count=committed,
        draft=draft,
        accepted_token_count=accepted,
        target=target,
        draft_end=end,
        positions=positions,
        draft_sources=sources,
        draft_lines=numbers,
    )


def lines(*draft: Token, **of_report: Any) -> list[str]:
    told = round_lines(report(*draft, **of_report))
    return ["".join(words.text for words in line) for line in told]


def test_a_rejected_token_is_replaced_and_what_follows_is_dropped():
    assert lines(THE, KEY, KEY, KEY, accepted=1) == [
        "[DRAFT] Token 0: 284 ('The')",
        "[DRAFT] Token 1: 1108 (' key')",
        "[DRAFT] Token 2: 1108 (' key')",
        "[DRAFT] Token 3: 1108 (' key')",
        "[SOURCE] model 0 to 3",
        "[VERIFY] Draft: 284 ('The'), Target: 284 ('The')",
        "[ACCEPT] Token 0 accepted",
        "[VERIFY] Draft: 1108 (' key'), Target: 2191 (' main')",
        "[REJECT] Token 1 rejected, using target token",
        "[ROLLBACK] 3 draft tokens dropped, 12 tokens kept",
    ]


def test_tokens_of_runner_up_lines_are_named():
    shown = lines(THE, KEY, KEY, KEY, accepted=4, numbers=(0, 2, 2, 3))
    assert shown[4:6] == [
        "[SOURCE] model 0 to 3",
        "[LINE] first 0, runner-up 2 1 to 2, runner-up 3 3",
    ]


def test_runner_up_lines_have_colours_of_their_own_on_a_terminal_and_none_elsewhere(capsys):
    styled = list(round_lines(report(THE, KEY, KEY, KEY, accepted=4, numbers=(0, 2, 2, 3))))
    [line] = [each for each in styled if each[0].text == "[LINE] "]
    assert [words.text for words in line[1::2]] == [
        "first 0",
        "runner-up 2 1 to 2",
        "runner-up 3 3",
    ]
    of_tokens = [each[0].style for each in styled[:4]]
    assert of_tokens == [source_style("model"), *[branch_style(2)] * 2, branch_style(3)]
    assert [words.style for words in line[1::2]] == ["", branch_style(2), branch_style(3)]
    branches = {branch_style(i) for i in range(1, 5)}
    assert len(branches) == 4 and branches.isdisjoint(map(source_style, DRAFTERS))
    show_lines(open_screen(), styled)  # the output is no terminal here
    assert "\x1b" not in capsys.readouterr().out


def test_a_draft_rejected_at_once_keeps_the_text_before_it():
    assert lines(THE, accepted=0)[2:] == [
        "[VERIFY] Draft: 284 ('The'), Target: 2191 (' main')",
        "[REJECT] Token 0 rejected, using target token",
        "[ROLLBACK] 1 draft token dropped, 11 tokens kept",
    ]


def test_a_fully_accepted_draft_brings_a_bonus():
    assert lines(THE, KEY, accepted=2) == [
        "[DRAFT] Token 0: 284 ('The')",
        "[DRAFT] Token 1: 1108 (' key')",
        "[SOURCE] model 0 to 1",
        "[VERIFY] Draft: 284 ('The'), Target: 284 ('The')",
        "[ACCEPT] Token 0 accepted",
        "[VERIFY] Draft: 1108 (' key'), Target: 1108 (' key')",
        "[ACCEPT] Token 1 accepted",
        "[BONUS] Target: 2191 (' main')",
    ]


def test_a_round_without_a_draft_is_plain():
    assert lines(accepted=0) == ["[PLAIN] Target: 2191 (' main')"]


def test_the_sources_of_the_draft_are_named_and_each_has_its_colour():
    sources = ("suffix", "suffix", "model", "prediction", "prediction")
    told = report(THE, KEY, KEY, KEY, KEY, accepted=0, sources=sources)
    styled = list(round_lines(told))
    named = "".join(words.text for words in styled[5])
    assert named == "[SOURCE] suffix 0 to 1, model 2, prediction 3 to 4"
    styles = [line[0].style for line in styled[:5]]
    assert styles == [source_style(source) for source in sources]
    assert [words.style for words in styled[5]] == ["", styles[0], "", styles[2], "", styles[3]]


# --- token texts ---


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"", "''"),
        (b" ", "' '"),
        (b"\n   ", r"'\n   '"),
        (b"\t", r"'\t'"),
        (b"\r\x00\x07\x1b[31m\x7f", r"'\r\x00\x07\x1b[31m\x7f'"),
        ("\x9b2J\u2028\u202e".encode(), r"'\x9b2J\u2028\u202e'"),
        (b"'", '''"'"'''),
        (b'"', """'"'"""),
        (b"\\", r"'\\'"),
        ("é名".encode(), "'é名'"),
        (b"\xc3", "'\ufffd'"),
        (b"a\xff\xfeb", "'a\ufffd\ufffdb'"),
    ],
)
def test_no_text_leaves_its_line(text: bytes, shown: str):
    line = f"[PLAIN] Target: 7 ({shown})"
    assert lines(accepted=0, target=Token(7, text)) == [line]
    assert line.isprintable()


# --- candidates ---


def test_the_candidates_stand_before_the_verdicts():
    position = Position((Candidate(THE, 0.75),), (Candidate(THE, 0.5),))
    bonus = Position((Candidate(MAIN, 1.0),), ())
    assert lines(THE, accepted=1, positions=(position, bonus)) == [
        "[DRAFT] Token 0: 284 ('The')",
        "[SOURCE] model 0",
        "[STOP] 1 drafted: it has the length that was asked for",
        "[TOP] Token 0: 284 ('The') p 0.750 q 0.500",
        "[TOP] Token 1: 2191 (' main') p 1.000 q -",
        "[VERIFY] Draft: 284 ('The'), Target: 284 ('The')",
        "[ACCEPT] Token 0 accepted",
        "[BONUS] Target: 2191 (' main')",
    ]


def test_the_targets_candidates_come_first_and_each_token_once():
    target = (Candidate(MAIN, 0.6), Candidate(KEY, 0.3))
    draft = (Candidate(KEY, 0.0004), Candidate(THE, 0.9996))
    shown = lines(accepted=0, positions=(Position(target, draft),), end=DraftEnd.PROMPT)
    assert shown == [
        "[STOP] 0 drafted: the first round is the prompt's",
        "[TOP] Token 0: 2191 (' main') p 0.600 q -, 1108 (' key') p 0.300 q 0.000, "
        "284 ('The') p - q 1.000",
        "[PLAIN] Target: 2191 (' main')",
    ]


def test_a_position_whose_candidates_are_unknown_has_its_line():
    assert lines(accepted=0, positions=(Position((), ()),))[1] == "[TOP] Token 0: -"


@pytest.mark.parametrize("end", list(DraftEnd))
def test_why_drafting_ended_is_one_line_for_every_reason(end: DraftEnd):
    shown = lines(THE, accepted=1, positions=(Position((), ()),), end=end)
    assert shown[2] == f"[STOP] 1 drafted: {end.value}"
