"""The list of mistakes fits the code and the tests, and what comes out of one is read rightly."""

from __future__ import annotations

import re

import pytest

from tests.mutations.mistakes import MISTAKES, Mistake
from tests.mutations.run import ROOT, chosen, first_failed, verdict


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_a_mistake_can_be_made_and_its_tests_are_there(mistake: Mistake) -> None:
    text = (ROOT / mistake.file).read_text(encoding="utf-8")
    assert text.count(mistake.old) == 1, "change `old` with the code, or choose another mistake"
    assert mistake.new != mistake.old and mistake.tests
    compile(text.replace(mistake.old, mistake.new), mistake.file, "exec")
    for test in mistake.tests:
        file, _, name = test.partition("::")
        tests = (ROOT / file).read_text(encoding="utf-8")
        assert not name or re.search(rf"^(async )?def {name}\(", tests, re.MULTILINE), test


def test_every_mistake_is_one_of_its_own() -> None:
    assert len({each.what for each in MISTAKES}) == len(MISTAKES) >= 20
    assert len({(each.file, each.old) for each in MISTAKES}) == len(MISTAKES)


def test_only_a_test_that_fails_catches_a_mistake() -> None:
    assert [verdict(status) for status in range(6)] == [
        *("SURVIVED", "caught"),
        *["NOT TRIED"] * 4,
    ]


def test_the_first_failed_test_is_read_from_the_summary() -> None:
    output = "F\n=== short test summary info ===\nFAILED tests/a.py::test_b[1] - assert 1 == 2\n"
    assert first_failed(output) == "tests/a.py::test_b[1]"
    assert first_failed("1 passed") == ""


def test_mistakes_are_chosen_by_sentence_or_file() -> None:
    assert chosen(MISTAKES, "") == list(MISTAKES)
    assert [each.file for each in chosen(MISTAKES, "outrider/noise.py")] == [
        "outrider/noise.py"
    ] * 2
    assert chosen(MISTAKES, "no such words") == []
