"""What a commit becomes for who reads it: pieces of text, tokens, and nothing after a stop."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.reporting import delta_of
from outrider.core.actions import Commit
from outrider.core.plan import Plan
from outrider.core.speculate import control
from outrider.core.target_costs import Pair
from outrider.core.text import TextAssembler
from outrider.messages import Form, Origin, Rule, SessionParameters
from outrider.response import Delta
from outrider.sampling import GREEDY
from outrider.speculation import Speculation

TEXTS = [b"a", b"b", b"c", b"\xc3", b"\xa4", b"<ctl>", b"</s>"]
CONTROL, END = 5, 6
DRAFTED, PLAIN = Origin.DRAFTED, Origin.PLAIN


def plan() -> Plan:
    opening = SessionParameters(
        session_id=bytes(16),
        attempt=1,
        rule=Rule.MATCH,
        sampling=GREEDY,
        seed=7,
        choice=0,
        prompt_count=1,
        token_limit=99,
        vocabulary=len(TEXTS),
        end_token_ids=frozenset({END}),
    )
    return Plan(
        opening=opening,
        prompt=[0],
        control=control(Speculation(), Rule.MATCH, Pair(), timeout=1.0),
        form=Form.SAMPLED,
        rollback_calls=False,
        target_context=99,
        token_texts=TEXTS,
        control_names={CONTROL: "<ctl>"},
    )


def delta(token_ids: Sequence[int], origins: Sequence[Origin], *stops: str) -> Delta:
    assembler = TextAssembler[Origin](stops)
    return delta_of(Commit(token_ids, origins), plan(), assembler)


def pieces(found: Delta) -> list[tuple[str, Origin]]:
    return [(piece.text, piece.origin) for piece in found.pieces]


def test_tokens_of_one_origin_are_one_piece() -> None:
    found = delta([0, 1, 2, 0, 1], [PLAIN, PLAIN, DRAFTED, DRAFTED, PLAIN])
    assert pieces(found) == [("ab", PLAIN), ("ca", DRAFTED), ("b", PLAIN)]
    assert list(found.token_ids) == [0, 1, 2, 0, 1]
    assert len(found.origins) == 5


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    assert pieces(delta([0, 3, 4, 1], [PLAIN, PLAIN, DRAFTED, PLAIN])) == [
        ("a", PLAIN),
        ("\xe4", DRAFTED),
        ("b", PLAIN),
    ]


def test_control_tokens_and_the_end_come_by_themselves() -> None:
    found = delta([0, CONTROL, 1, END], [PLAIN] * 4)
    assert pieces(found) == [("a", PLAIN), ("<ctl>", PLAIN), ("b", PLAIN)]
    assert [piece.control for piece in found.pieces] == [False, True, False]
    assert list(found.token_ids) == [0, CONTROL, 1, END]


def test_no_token_after_a_stop_sequence_is_part_of_it() -> None:
    found = delta([0, 1, 2, 0], [PLAIN] * 4, "bc")
    assert pieces(found) == [("a", PLAIN)]
    assert list(found.token_ids) == [0, 1, 2]
