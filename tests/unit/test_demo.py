"""What the demo says of runs whose times are known."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Sequence

import pytest
from rich.console import Console

from outrider.client import Origin
from outrider_cli import verdict
from outrider_cli.demo.questions import (
    DemoRequest,
    Row,
    Run,
    common_count,
    parting,
    requests_for,
    together,
)
from outrider_cli.demo.show import Scene, near_tie, table, verdict_line
from outrider_cli.render import STYLES, Words

EDIT = DemoRequest("an edit", "Correct this:\n\n1 2 3", 8, True)


def run(
    rate: float | None,
    token_ids: Sequence[int] = (1, 2, 3),
    has_ended: bool = True,
    **accepted: int,
) -> Run:
    return Run(
        prompt_token_ids=(9,),
        token_ids=tuple(token_ids),
        has_ended=has_ended,
        total_seconds=1.0,
        seconds=10 / rate if rate else 0.0,
        later_count=10 if rate else 0,
        accepted=Counter(accepted),
        drafted_count=2 * sum(accepted.values()),
    )


def row(*rates: tuple[float | None, float | None], **accepted: int) -> Row:
    pairs = [(run(plain), run(fast, **accepted)) for plain, fast in rates]
    return Row(EDIT, pairs)


def printed(rows: Sequence[Row], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table(rows))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_shows_the_pair_with_the_median_ratio():
    shown = printed([row((100, 300), (100, 150), (80, 160), suffix=3, copy=5)])
    (line,) = (line for line in shown.splitlines() if line.startswith("an edit"))
    assert line.startswith("an edit  ") and " 80 tok/s " in line and " 160 tok/s " in line
    assert line.endswith(" 2.00  copy, suffix (50%)  same")


def test_every_row_of_every_model_is_a_line_of_80_columns():
    for has_template in (True, False):
        requests = requests_for(has_template)
        pairs = [(run(1000), run(1000, (4, 5), suffix=9, copy=8, ngram=7))]
        shown = printed([Row(request, pairs) for request in requests])
        assert len(shown.splitlines()) == 1 + len(requests)


def test_what_drafted_is_named_as_a_process_where_it_is_one():
    linked = requests_for(True)[2]
    assert "remote (50%)" in printed([Row(linked, [(run(10), run(20, model=4))])])
    assert "nothing" in printed([row((10, 10))])


def test_a_run_that_was_cut_at_once_has_no_rate():
    cut = row((None, 10))
    assert cut.ratios == [] and "n/a" in printed([cut])
    assert "too slow" in verdict_line([cut])


def test_the_verdict_is_the_geometric_mean_over_the_requests_of_each_pair():
    rows = [row(*3 * ((10, 10),)), row((10, 40), (10, 90), (10, 160), suffix=1)]
    assert together(rows) == pytest.approx([2.0, 3.0, 4.0])
    assert verdict_line(rows) == verdict.sentence(3.0, 2.0, 4.0)


def test_the_verdict_knows_whether_anything_was_drafted():
    rates = ((10, 10.5), (10, 9.5), (10, 10))
    assert verdict_line([row(*rates)]) == verdict.sentence(1.0, 0.95, 1.05, drafted=False)
    assert verdict_line([row(*rates, suffix=1)]) == verdict.sentence(1.0, 0.95, 1.05)


def test_a_verdict_from_few_runs_has_a_reserve():
    shown = verdict_line([row((10, 5), suffix=1)])
    assert shown.startswith(verdict.sentence(0.5)) and "Few runs" in shown


def test_texts_part_at_their_first_other_token():
    assert common_count((1, 2, 3), (1, 2, 4)) == 2
    other = (run(1, (1, 2, 3)), run(1, (1, 5, 3)))
    assert parting(Row(EDIT, [(run(1), run(1)), other])) is other


def test_a_text_that_was_cut_is_not_another_text():
    cut = run(1, (1, 2), has_ended=False)
    assert parting(Row(EDIT, [(run(1, (1, 2, 3)), cut)])) is None
    ended = (run(1, (1, 2, 3)), run(1, (1, 2)))
    assert parting(Row(EDIT, [ended])) is ended


def test_only_two_tokens_of_like_probability_are_called_a_near_tie():
    near = near_tie(12, [math.log(0.409), math.log(0.412)])
    assert "after 12 tokens" in near and ".412 and .409" in near and "near-tie" in near
    assert "near-tie" not in near_tie(1, [math.log(0.6), math.log(0.3)])
    assert near_tie(1, ()) == "The texts part after 1 token, where one of them ends."


def test_the_edit_is_the_same_with_and_without_a_link():
    for has_template in (True, False):
        first, second, third = requests_for(has_template)
        assert (second.prompt, second.token_limit) == (third.prompt, third.token_limit)
        assert third.is_linked and not first.is_linked and not second.is_linked


def test_a_pipe_gets_the_text_once_and_no_codes():
    console = Console(file=io.StringIO(), color_system=None)
    _play(console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "one two\n"


def test_a_terminal_gets_both_texts_beside_each_other_in_colors():
    console = Console(
        file=io.StringIO(), width=70, force_terminal=True, color_system="standard", _environ={}
    )
    _play(console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "\x1b[32m two" in shown
    last = shown.rsplit("without drafts", 1)[1]
    assert "10 tokens/s" in last and "20 tokens/s" in last
    assert shown.endswith("\x1b[?25h"), "the cursor is back"


def _play(console: Console) -> None:
    with Scene(console) as scene:
        for words in (Words("one"), Words(" two")):
            scene.plain(words)
        scene.finish_plain(run(10))
        for words in (Words("one"), Words(" two", STYLES[Origin.DRAFTED])):
            scene.drafted(words)
        scene.finish_drafted(run(20))


def test_a_text_cannot_move_the_cursor():
    console = Console(file=io.StringIO(), color_system=None)
    with Scene(console) as scene:
        scene.plain(Words("\x1b[2J"))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "\\x1b[2J"
