"""What a head in a draft service is sent of its target's hidden rows, and when it is asked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outrider.core.generation import Generation
from outrider.core.plan import Plan
from outrider.core.rates import DraftRates, Mean
from outrider.core.speculate import control
from outrider.core.target_costs import Pair, TargetCosts
from outrider.errors import VocabularyMismatch
from outrider.handshake import check_head
from outrider.messages import Answer, Form, Frame, Order, Round, Rows, Rule, SessionParameters
from outrider.row_window import RowWindow
from outrider.sampling import GREEDY
from outrider.speculation import Policy, Speculation
from outrider.v1 import common_pb2 as common

PROMPT = [3, 1, 4, 1]
WIDTH = 2


def plan(policy: Policy = Policy.FIXED, pair: Pair | None = None, **speculation: object) -> Plan:
    opening = SessionParameters(
        session_id=bytes(16),
        attempt=1,
        rule=Rule.MATCH,
        sampling=GREEDY,
        seed=7,
        choice=0,
        prompt_count=len(PROMPT),
        token_limit=40,
        vocabulary=8,
    )
    asked = Speculation(n_max=2, policy=policy, **speculation)  # type: ignore[arg-type]
    pair = pair or Pair(TargetCosts(), DraftRates(source="mtp"))
    its_control = control(asked, Rule.MATCH, pair, timeout=1.0)
    return Plan(
        opening=opening,
        prompt=PROMPT,
        control=its_control,
        form=Form.SAMPLED,
        rollback_calls=False,
        target_context=1000,
    )


def window(position: int, count: int, width: int = WIDTH) -> RowWindow:
    """Return rows that say where they are."""
    return RowWindow(position, tuple(bytes([position + i]) * 2 * width for i in range(count)))


class World:
    """A generation whose peers are played by hand."""

    def __init__(self, its_plan: Plan | None = None) -> None:
        self.generation = Generation(its_plan or plan())
        self.generation.target_opened()

    def open_head(self) -> None:
        self.generation.draft_opened(1000, WIDTH)

    def asked(self) -> tuple[Round | None, Order | None]:
        actions = self.generation.next_actions(0.0)
        rounds = [each for each in actions if isinstance(each, Round)]
        orders = [each for each in actions if isinstance(each, Order)]
        return (rounds[-1] if rounds else None), (orders[-1] if orders else None)

    def answer(self, round_: Round, rows: RowWindow, sampled: Sequence[int] = (6,)) -> None:
        """Answer a round; by default all of its draft is rejected."""
        position = len(self.generation.committed)
        answer = Answer(round_.number, position, len(sampled) - 1, Rows(list(sampled)), hidden=rows)
        self.generation.target_answered(answer, 0.0)

    def draft(self, order: Order, token_ids: Sequence[int]) -> None:
        end = order.committed.end
        frame = Frame(end, end, token_ids, bytes(len(token_ids)), completed=order.number)
        self.generation.draft_frame(frame, 0.0)


def begun() -> tuple[World, Order]:
    """Return a world after its prompt was read, and the head's first order."""
    world = World()
    world.open_head()
    round_, order = world.asked()
    assert round_ is not None and round_.wants_rows and order is None
    world.answer(round_, window(0, len(PROMPT)))
    round_, order = world.asked()
    assert round_ is None and order is not None
    return world, order


def test_a_head_is_asked_once_there_is_the_row_of_the_last_token_but_one() -> None:
    _, order = begun()
    assert order.rows == window(0, len(PROMPT))
    assert (order.committed.end, order.draft_until) == (len(PROMPT) + 1, len(PROMPT) + 3)


def test_it_is_sent_what_it_does_not_have_and_nothing_of_rejected_tokens() -> None:
    world, order = begun()
    world.draft(order, [5, 7])
    round_, _ = world.asked()
    assert round_ is not None and list(round_.draft) == [5, 7]
    world.answer(round_, window(4, 3), [5, 2, 0])  # one accepted, and rows of all
    _, order = world.asked()  # type: ignore[assignment]
    assert order.rows == window(4, 2)


def test_a_head_without_that_row_is_not_asked_and_the_text_goes_on() -> None:
    world = World()
    world.open_head()
    round_, _ = world.asked()
    for _ in range(3):
        assert round_ is not None
        world.answer(round_, RowWindow())
        round_, order = world.asked()
        assert round_ is not None and round_.wants_rows and not round_.draft and order is None


@pytest.mark.parametrize("rows", [window(0, 4, WIDTH + 1), RowWindow(0, (b"",) * 4), window(9, 4)])
def test_rows_that_it_cannot_read_are_as_none(rows: RowWindow) -> None:
    world = World()
    world.open_head()
    round_, _ = world.asked()
    assert round_ is not None
    world.answer(round_, rows)
    round_, order = world.asked()
    assert round_ is not None and order is None


def test_a_new_stream_is_sent_the_window_again() -> None:
    world, _ = begun()
    world.generation.draft_lost()
    world.open_head()
    _, order = world.asked()
    assert order is not None and order.rows == window(0, len(PROMPT))


def test_so_is_a_head_that_lost_the_text() -> None:
    world, order = begun()
    world.generation.draft_missing(order.number, 0)
    _, again = world.asked()
    assert again is not None and again.rows == order.rows


def test_other_drafts_cost_no_rows() -> None:
    world = World(plan(pair=Pair()))
    world.generation.draft_opened(1000)
    round_, order = world.asked()
    assert round_ is not None and not round_.wants_rows
    assert order is not None and not order.rows.rows


def test_a_head_that_does_not_pay_costs_no_rows() -> None:
    """Its round trip is ten times a token: the forecast leaves it out like any remote draft."""
    rates = DraftRates(token_time=Mean(0.001), latency=Mean(1.0), source="mtp")
    world = World(plan(Policy.MEASURED, Pair(TargetCosts(), rates)))
    world.open_head()
    round_, order = world.asked()
    assert round_ is not None and not round_.wants_rows and order is None


@pytest.mark.parametrize("run_ahead", [None, True])
def test_a_head_never_runs_ahead(run_ahead: bool | None) -> None:
    """What it would chain beyond a round would not be of the target's rows."""
    far = DraftRates(token_time=Mean(0.001), latency=Mean(0.01))
    for is_head in (False, True):
        far.source = "mtp" if is_head else "model"
        its = control(
            Speculation(policy=Policy.MEASURED, run_ahead=run_ahead),
            Rule.MATCH,
            Pair(TargetCosts(), far),
            timeout=1.0,
        )
        its.note_presence(True)
        assert its.runs_ahead() is not is_head


HEAD = common.GetModelResponse(
    architecture="qwen35", head=common.HEAD_KIND_MTP, hidden_row_width=64
)


@pytest.mark.parametrize(
    ("target", "draft", "said"),
    [
        ({}, {"architecture": "glm4moe"}, "one of glm4moe, and the target is qwen35"),
        ({"hidden_row_width": 0}, {}, "returns no hidden rows: start it with --hidden-rows"),
        ({"hidden_row_width": 32}, {}, "rows of 64 numbers, the target's have 32"),
        ({}, {"head": common.HEAD_KIND_EAGLE3}, "an EAGLE-3 head: it reads layers"),
    ],
)
def test_a_head_that_cannot_read_a_target_is_refused_in_a_line(
    target: dict[str, object], draft: dict[str, object], said: str
) -> None:
    whole = {"architecture": "qwen35", "hidden_row_width": 64}
    its = common.GetModelResponse(**(whole | target))  # type: ignore[arg-type]
    of_draft = common.GetModelResponse()
    of_draft.CopyFrom(HEAD)
    for name, value in draft.items():
        setattr(of_draft, name, value)
    check_head(common.GetModelResponse(**whole), HEAD)  # type: ignore[arg-type]
    with pytest.raises(VocabularyMismatch, match=said) as caught:
        check_head(its, of_draft)
    assert "\n" not in str(caught.value)
