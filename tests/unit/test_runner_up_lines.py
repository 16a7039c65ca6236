"""Runner-up lines as the orchestrator received them: which of them the text goes on with."""

from __future__ import annotations

import random

import pytest

from outrider.core.draft_line import ReceivedLine
from outrider.messages import Frame, RunnerUp

TEXT = [1, 2, 3]


def frame(position: int, *token_ids: int, line: int = 0, runner_ups: object = ()) -> Frame:
    confidences = bytes(token_ids)
    return Frame(3, position, token_ids, confidences, (), 0, (), line, runner_ups)  # type: ignore[arg-type]


def fork(line: int, parent: int, at: int, *token_ids: int, position: int | None = None) -> RunnerUp:
    first = at if position is None else position
    return RunnerUp(line, parent, at, first, token_ids, bytes(token_ids))


def received(*frames: Frame, text: list[int] = TEXT) -> ReceivedLine:
    line = ReceivedLine()
    line.may_fork = True
    for each in frames:
        line.add(each, text)
    return line


def test_a_miss_that_was_foreseen_finds_its_line_there() -> None:
    line = received(frame(3, 10, 11, 12, runner_ups=[fork(1, 0, 4, 21, 22, 23)]))
    compared = line.compare([*TEXT, 10, 21])
    assert (compared.mismatch, compared.foreseen) == (4, True)
    assert compared.decided == [10, 11]
    assert list(line.line_after(5).token_ids) == [22, 23]
    assert line.line_after(5).confidences == [22, 23]


def test_a_correction_that_nobody_foresaw_leaves_no_line() -> None:
    line = received(frame(3, 10, 11, runner_ups=[fork(1, 0, 4, 21, 22)]))
    compared = line.compare([*TEXT, 10, 31])
    assert (compared.mismatch, compared.foreseen) == (4, False)
    assert line.token_ids == []


def test_the_text_may_be_behind_the_correction_when_it_is_compared() -> None:
    line = received(frame(3, 10, 11, runner_ups=[fork(1, 0, 3, 20, 21, 22)]))
    compared = line.compare([*TEXT, 20, 21])
    assert compared.foreseen
    assert list(compared.after) == [21], "the correction itself was no draft token"
    assert list(line.line_after(5).token_ids) == [22]


def test_a_runner_up_line_that_the_text_has_overtaken_is_none() -> None:
    line = received(frame(3, 10, runner_ups=[fork(1, 0, 3, 20, 21)]))
    assert not line.compare([*TEXT, 20, 21, 22]).foreseen
    assert line.token_ids == []


def test_lines_leave_runner_up_lines_too() -> None:
    line = received(
        frame(3, 10, 11, runner_ups=[fork(1, 0, 3, 20, 21, 22), fork(2, 1, 4, 31, 32, 33)])
    )
    assert line.compare([*TEXT, 20]).foreseen
    assert list(line.line_after(4).token_ids) == [21, 22], "the first choice, while it may stand"
    compared = line.compare([*TEXT, 20, 31])
    assert (compared.mismatch, compared.foreseen) == (4, True)
    assert list(line.line_after(5).token_ids) == [32, 33]


def test_a_line_is_compared_once_and_goes_on_under_its_number() -> None:
    text = [*TEXT, 20]
    line = received(frame(3, 10, 11, runner_ups=[fork(1, 0, 3, 20, 21)]))
    line.compare(text)
    line.add(frame(5, 22, 23, line=1), text)
    assert list(line.line_after(4).token_ids) == [21, 22, 23]
    assert list(line.compare([*text, 21, 22]).decided) == [21, 22]


def test_tokens_of_the_line_that_was_left_are_no_news() -> None:
    text = [*TEXT, 31]
    line = received(frame(3, 10, 11))
    line.compare(text)
    assert not line.add(frame(5, 12), text).is_news
    assert line.token_ids == []


def test_a_line_that_was_under_way_when_the_text_went_on_with_it_is_found_later() -> None:
    text = [*TEXT, 20]
    line = received(frame(3, 10, 11))
    assert not line.compare(text).foreseen
    compared = line.add(frame(5, 12, runner_ups=[fork(1, 0, 3, 20, 21, 22)]), text)
    assert compared.is_news and compared.mismatch is None
    assert list(line.line_after(4).token_ids) == [21, 22]


def test_a_new_base_ends_all_lines() -> None:
    text = [*TEXT, 20]
    line = received(frame(3, 10, runner_ups=[fork(1, 0, 3, 20, 21)]))
    line.add(Frame(4, 4, [40, 41], bytes(2)), text)
    assert (line.base, line.token_ids) == (4, [40, 41])


def test_a_late_piece_of_a_line_that_was_contradicted_is_no_line() -> None:
    text = [*TEXT, 20]
    line = received(frame(3, 10, 11, runner_ups=[fork(1, 0, 3, 20, 21)]))
    assert line.compare(text).foreseen
    line.add(frame(5, 12), text)
    assert not line.compare([*text, 29]).foreseen
    line.add(frame(6, 13, 14), [*text, 29])
    assert line.end < 6, "its tokens are no one's"


def test_a_line_falls_with_the_one_that_it_leaves() -> None:
    line = received(frame(3, 10, 11, 12, runner_ups=[fork(1, 0, 4, 21, 22), fork(2, 1, 5, 32, 33)]))
    assert not line.compare([*TEXT, 10, 41, 32]).foreseen
    assert line.token_ids == []


def test_nobody_counts_on_what_a_draft_with_several_lines_went_on_with() -> None:
    text = [*TEXT, 10, 11]
    line = received(frame(3, 10, 11, 12))
    assert line.agreed(text, len(TEXT)) == len(TEXT)
    alone = ReceivedLine()
    alone.add(frame(3, 10, 11, 12), TEXT)
    assert alone.agreed(text, len(TEXT)) == len(text)


def test_without_a_wish_for_them_runner_up_lines_are_ignored_and_a_miss_ends_the_base() -> None:
    line = ReceivedLine()
    line.add(frame(3, 10, runner_ups=[fork(1, 0, 3, 20, 21)]), TEXT)
    assert not line.compare([*TEXT, 20]).foreseen
    assert not line.add(frame(4, 11), [*TEXT, 20]).is_news


def test_a_line_that_was_dropped_is_not_found_again() -> None:
    line = received(frame(3, 10, runner_ups=[fork(1, 0, 3, 20, 21)]))
    line.drop()
    assert not line.add(frame(4, 11, runner_ups=[fork(2, 0, 3, 20)]), [*TEXT, 20]).is_news
    assert line.token_ids == []


def test_no_more_than_so_many_lines_are_kept_whatever_comes() -> None:
    line = received(frame(3, 10, 11))
    for number in range(1, 1000):
        piece = fork(number, number - 1, 3 + number % 2, number % 256)
        line.add(frame(5, runner_ups=[piece, fork(2**31 - number, 7**9, 4, 9)]), TEXT)
    assert len(line._lines) <= 64
    assert list(line.line_after(3).token_ids) == [10, 11], "the line itself is never among them"


def test_of_any_lines_in_any_pieces_the_text_goes_on_with_one_that_it_agrees_with() -> None:
    """Compares with whole texts: every line as one list, searched from the first choice on."""
    for seed in range(500):
        dice = random.Random(seed)
        lines = {0: (0, 3, [*TEXT, *dice.choices(range(3), k=4)])}
        for number in range(1, 6):
            parent = dice.randrange(number)
            whole = lines[parent][2]
            at = dice.randrange(max(3, lines[parent][1]), len(whole))
            own = [3 + whole[at] * 0 + dice.randrange(2), *dice.choices(range(3), k=3)]
            lines[number] = (parent, at, [*whole[:at], *own])
        received_line = received()
        for number, (parent, at, whole) in lines.items():
            cut = dice.randint(at, len(whole))
            for start, end in ((at, cut), (cut, len(whole))):
                if number == 0:
                    piece = frame(start, *whole[start:end])
                elif start < end:
                    piece = frame(
                        len(lines[0][2]),
                        runner_ups=[fork(number, parent, at, *whole[start:end], position=start)],
                    )
                received_line.add(piece, TEXT)
        text = list(dice.choice(list(lines.values()))[2])
        text = text[: dice.randint(3, len(text))] + dice.choices(range(5), k=dice.choice([0, 0, 1]))
        for length in range(4, len(text) + 1):
            received_line.compare(text[:length])
        agreeing = [whole for _, _, whole in lines.values() if whole[: len(text)] == text]
        left = list(received_line.line_after(len(text)).token_ids)
        if not agreeing:
            assert left == [], seed
        else:
            assert text + left in agreeing, seed


# --- for a tree ---


def forks(line: ReceivedLine, length: int) -> list[tuple[list[int], int]]:
    return [(list(each.line.token_ids), each.fork) for each in line.forks_after(length)]


def test_runner_up_lines_after_the_text_are_whole_paths_from_it() -> None:
    pieces = [fork(1, 0, 5, 21, 22), fork(2, 1, 6, 31), fork(3, 0, 4, 41)]
    line = received(frame(3, 10, 11, 12, 13, runner_ups=pieces))
    assert forks(line, 3) == [([10, 11, 21, 22], 2), ([10, 11, 21, 31], 3), ([10, 41], 1)]
    assert [list(each.line.confidences) for each in line.forks_after(3)][1] == [10, 11, 21, 31]
    assert forks(line, 4) == [([11, 21, 22], 1), ([11, 21, 31], 2), ([41], 0)]


def test_what_leaves_the_line_before_the_text_ends_is_no_branch() -> None:
    line = received(frame(3, 10, 11, 12, runner_ups=[fork(1, 0, 3, 20, 21), fork(2, 1, 4, 30)]))
    assert len(forks(line, 3)) == 2
    text = [*TEXT, 10]
    line.compare(text)
    assert forks(line, 4) == []


def test_no_path_leads_over_a_gap() -> None:
    late = fork(1, 0, 4, 22, position=5)  # its first piece was lost: it is no line
    assert forks(received(frame(3, 10, 11, runner_ups=[late])), 3) == []
    pieces = [fork(1, 0, 4, 21), fork(1, 0, 4, 23, position=7), fork(2, 1, 8, 31)]
    line = received(frame(3, 10, 11, runner_ups=pieces))
    assert forks(line, 3) == []
    assert forks(received(frame(3, 10), frame(6, 13, runner_ups=[fork(1, 0, 6, 20)])), 3) == []


def test_a_runner_up_has_its_share_of_what_the_lines_before_leave() -> None:
    # The line's token has 102 of 255, the second choice 76 and the third 38.
    pieces = [fork(1, 0, 3, 76), fork(2, 0, 3, 38)]
    shares = [each.share for each in received(frame(3, 102, runner_ups=pieces)).forks_after(3)]
    assert shares == pytest.approx([76 / (255 - 102), 38 / (255 - 102 - 76)])
    sure = received(frame(3, 255, runner_ups=[fork(1, 0, 3, 200)])).forks_after(3)
    assert [each.share for each in sure] == [1.0]
