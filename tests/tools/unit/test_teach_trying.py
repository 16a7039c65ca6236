"""What is said of a head that was tried, and on which prompts."""

from __future__ import annotations

from collections import Counter

from outrider_teach.prompts import GROUPS, OWN, Prompt, bundled, is_held_out, own
from outrider_teach.trying import Tried, held_out_prompts, lines_of, table


def test_the_prompts_are_held_out_distinct_and_of_each_group_as_many() -> None:
    found = held_out_prompts(bundled(1), 6, None)
    assert Counter(prompt.group for prompt in found) == dict.fromkeys(GROUPS, 2)
    assert all(is_held_out(prompt.text) for prompt in found)
    assert len({prompt.text for prompt in found}) == 6


def test_of_own_prompts_there_are_as_many_as_are_held_out() -> None:
    prompts = [Prompt(OWN, passage=f"text {number}") for number in range(100)]
    expected = {prompt.text for prompt in prompts if is_held_out(prompt.text)}
    found = held_out_prompts(own(prompts, 1), 50, 100)
    assert {prompt.text for prompt in found} == expected and len(found) == len(expected)
    assert len(held_out_prompts(own(prompts, 1), 2, 100)) == 2
    assert held_out_prompts(own(prompts[:1], 1), 2, 1) == []


def test_acceptance_is_of_all_drafted_tokens_and_speed_the_median_with_its_interval() -> None:
    tried = [
        Tried("chat", 0.0, 30, 15, 1.2),
        Tried("chat", 0.8, 30, 12, 1.1),
        Tried("code", 0.0, 90, 81, 1.6),
        Tried("code", 0.8, 0, 0, None),
    ]
    chat, code, both = lines_of(tried)
    assert (chat.name, chat.count, chat.acceptance) == ("chat", 1, {0.0: 0.5, 0.8: 0.4})
    assert (code.acceptance, list(code.speedup)) == ({0.0: 0.9}, [0.0])
    assert (both.name, both.count, both.acceptance[0.0]) == ("all", 2, 0.8)
    assert (both.speedup[0.0].low, both.speedup[0.0].value, both.speedup[0.0].high) == (
        1.2,
        1.4,
        1.6,
    )


def test_the_table_has_a_line_for_each_group_and_its_columns_stand_below_each_other() -> None:
    tried = [Tried(group, t, 9, 6, 1.25) for group in ("chat", "code") for t in (0.0, 0.8)]
    shown = table(lines_of(tried))
    assert len({len(line) for line in shown[1:]}) == 1
    assert shown[1].split() == ["prompts", "count", "T", "0", "T", "0.8", "T", "0", "T", "0.8"]
    assert shown[2].split()[:4] == ["chat", "1", "0.667", "0.667"]
    assert shown[-1].endswith("1.25 [1.25, 1.25]")
    assert shown[0].index("speed") > shown[1].index("0.8")
