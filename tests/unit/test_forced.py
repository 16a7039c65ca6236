"""What a grammar forces, against all texts of small grammars, and the tokens that it takes."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.drafters.forced import ForcedSource, GrammarPlace
from outrider.grammar.gbnf import read_grammar
from outrider.grammar.schema import grammar_of_schema
from outrider.grammar.states import GrammarStates
from tests.support.grammars import JSON, USUAL, random_text
from tests.support.operations import lines_run

SETTINGS = settings(derandomize=True, deadline=None)
WORDS = st.lists(st.text("abé", max_size=4), min_size=1, max_size=3)
TEXTS = ["", '{"', 'name":', '"', "na", "me", 'name"', ":", '":', "{", "x", "y", "a", "b", "ab"]
END = len(TEXTS)
OBJECT = r'root ::= "{\"name\":" ("x" | "y") "ab"'


def place_in(grammar: str) -> GrammarPlace:
    states = GrammarStates(read_grammar(grammar))
    return GrammarPlace(states, states.start)


def text_of(token_id: int) -> bytes:
    return TEXTS[token_id].encode() if token_id < END else b""


def tokenize(text: bytes) -> list[int]:
    """Take the longest token that comes next, again and again."""
    found = []
    while text:
        fitting = [i for i in range(1, END) if text.startswith(text_of(i))]
        found.append(max(fitting, key=lambda token_id: len(text_of(token_id))))
        text = text[len(text_of(found[-1])) :]
    return found


def source_of(grammar: str, end_id: int | None = END, prompt: Sequence[int] = ()) -> ForcedSource:
    states = GrammarStates(read_grammar(grammar))
    return ForcedSource(states, text_of, tokenize, prompt, end_id)


def ids(*texts: str) -> list[int]:
    return [TEXTS.index(text) for text in texts]


# the grammar


def quoted(word: str) -> str:
    return json.dumps(word, ensure_ascii=False)


def common_start(texts: Sequence[str]) -> str:
    chars = zip(*texts, strict=False)
    return "".join(same[0] for same in itertools.takewhile(lambda some: len({*some}) == 1, chars))


@SETTINGS
@given(st.lists(WORDS, min_size=1, max_size=4))
def test_what_is_forced_is_what_all_texts_have_in_common(groups: list[list[str]]) -> None:
    """A text that ends there is one of them: then nothing is forced."""
    grammar = "root ::= " + " ".join(f"({' | '.join(map(quoted, words))})" for words in groups)
    texts = {"".join(words) for words in itertools.product(*groups)}
    for text in texts:
        for length in range(len(text) + 1):
            place = place_in(grammar).after(text[:length].encode())
            rest = [other[length:] for other in texts if other.startswith(text[:length])]
            assert place.forced() == (common_start(rest), len(set(rest)) == 1)


@pytest.mark.parametrize("name", USUAL)
def test_a_text_of_a_usual_grammar_is_followed_and_has_what_is_forced(name: str) -> None:
    grammar = read_grammar(USUAL[name])
    states = GrammarStates(grammar)
    for seed in range(5):
        text = random_text(grammar, random.Random(seed), length=80)
        place = GrammarPlace(states, states.start)
        for i, char in enumerate(text):
            run, is_end = place.forced()
            assert text.startswith(run, i)
            assert not is_end or text[i:] == run
            place = place.after(char.encode())
            assert place.state is not None
        assert place.state is not None and place.state.can_end


def test_a_text_that_is_not_let_forces_nothing_from_then_on() -> None:
    place = place_in('root ::= "abc"')
    assert place.forced() == ("abc", True)
    for text in (b"x", b"\xff", b"\0", b"abcd", b"\xc3x"):
        lost = place.after(text)
        assert lost.state is None and lost.forced() == ("", False)
        assert lost.after(b"a").state is None


def test_a_character_may_come_in_halves() -> None:
    place = place_in('root ::= "aé😀b"')
    for byte in "aé😀".encode():
        place = place.after(bytes([byte]))
        assert not place.half or place.forced() == ("", False)
    assert place.forced() == ("b", True)


def test_a_long_run_is_cut() -> None:
    run, is_end = place_in("root ::= " + '"ab" ' * 400).forced()
    assert run == "ab" * 128 and not is_end


def test_a_class_of_one_character_is_forced_and_a_range_is_not() -> None:
    assert place_in('root ::= [a] [^\\x00-`b-\\U0010ffff] "c"').forced() == ("aac", True)
    assert place_in('root ::= "a" [b-c]').forced() == ("a", False)
    assert place_in('root ::= "a" "b"?').forced() == ("a", False)


def test_keys_of_a_schema_are_forced_behind_their_first_letters() -> None:
    properties = {"customer_identifier": {"type": "integer"}, "kind": {"enum": ["wide", "wild"]}}
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    place = place_in(grammar_of_schema(json.dumps({**schema, "additionalProperties": False})))
    assert place.forced()[0] == "{"
    assert place.after(b'{"').forced()[0] == 'customer_identifier":'
    assert place.after(b'{"customer_identifier": 1, "kind": "wil').forced()[0] == 'd"'


def test_what_is_new_is_looked_at_up_to_a_bound() -> None:
    states = GrammarStates(read_grammar('root ::= ("a" | "b" root "c")*'), most_work=200)
    state, depth = states.start, 0
    while state is not None:
        state, depth = states.step(state, "b"), depth + 1
        assert depth < 200
    again = states.start
    for _ in range(depth - 1):
        assert again is not None
        again = states.step(again, "b")
    assert again is not None  # what was seen is still known
    assert states.size_bytes < 100_000


def test_a_known_text_costs_one_look_up_a_character() -> None:
    grammar = read_grammar(JSON)
    text = random_text(grammar, random.Random(1), length=100)
    states = GrammarStates(grammar)
    start = GrammarPlace(states, states.start)
    first = lines_run(lambda: start.after(text.encode()))
    assert lines_run(lambda: start.after(text.encode())) < min(first, 10 * len(text) + 20)


def test_no_grammar_takes_more_than_the_bound() -> None:
    for grammar in (
        "root ::= " + " | ".join(f'"{i:05d}"' for i in range(5000)),
        "root ::= " + "[" + "".join(chr(0x100 + 2 * i) for i in range(500)) + "]{1,2000}",
        "root ::= a a a a a a a a\na ::= b?\nb ::= [xyz] a?",
    ):
        states = GrammarStates(read_grammar(grammar), most_work=2000)
        place = GrammarPlace(states, states.start)
        assert lines_run(lambda place=place: place.after(b"xyz" * 100).forced()) < 200_000
        assert states.size_bytes < 300 * 4000


# the tokens


def test_the_usual_tokens_of_what_is_forced_are_proposed() -> None:
    source = source_of(OBJECT)
    assert source.propose(8).token_ids == ids('{"', 'name":')
    assert source.propose(1).token_ids == ids('{"')
    source.append(ids('{"', 'name":', "x"))
    assert source.propose(8).token_ids == [*ids("ab"), END]
    assert source.propose(8, after=ids("ab")).token_ids == [END]


def test_what_stands_before_decides_where_tokens_begin() -> None:
    whole = source_of(OBJECT)
    whole.append(ids("{"))
    assert whole.propose(8).token_ids == ids('"', 'name":')
    after_half = source_of(OBJECT)
    after_half.append(ids("{", '"', "na"))
    assert after_half.propose(8).token_ids == ids("me", '":')


def test_the_end_of_the_prompt_is_tokenized_too() -> None:
    seen = []

    def noted(text: bytes) -> list[int]:
        seen.append(text)
        return tokenize(text)

    states = GrammarStates(read_grammar('root ::= "name" ("x" | "y")'))
    source = ForcedSource(states, text_of, noted, ids("x", "y", "{"))
    assert source.propose(8).token_ids == ids("na", "me")
    assert seen == [b"xy{name"]


def test_the_last_token_is_less_sure_unless_the_text_ends_there() -> None:
    source = source_of(OBJECT)
    first, last = source.propose(8).confidences
    assert last < first
    source.append(ids('{"', 'name":', "y"))
    assert source.propose(8).confidences == bytes([first, first])


def test_no_end_is_proposed_without_its_token_nor_where_the_text_may_go_on() -> None:
    assert source_of('root ::= "ab"', end_id=None).propose(8).token_ids == ids("ab")
    assert source_of('root ::= "ab" "x"?').propose(8).token_ids == ids("ab")
    ended = source_of('root ::= "ab"')
    ended.append(ids("ab"))
    assert ended.propose(8).token_ids == [END]
    ended.append([END])
    assert len(ended.propose(8).token_ids) <= 1  # the text is over, nobody asks


def test_other_tokens_of_the_same_bytes_are_followed() -> None:
    source = source_of(OBJECT)
    source.propose(8)
    source.append(ids('{"', "na"))
    assert source.propose(8).token_ids == ids("me", '":')


def test_tokens_that_are_not_known_yet_are_asked_for_again() -> None:
    answers: list[list[int]] = [[], ids('{"', 'name":')]
    states = GrammarStates(read_grammar(OBJECT))
    source = ForcedSource(states, text_of, lambda text: answers.pop(0))
    assert not source.propose(8).token_ids
    assert source.propose(8).token_ids == ids('{"', 'name":')
    assert source.propose(8).token_ids == ids('{"', 'name":')  # and not once more


def test_a_tokenizer_that_adds_to_the_text_is_heard_where_it_does_not_matter() -> None:
    states = GrammarStates(read_grammar('root ::= "{" "ab" ("x" | "y")'))
    before = ForcedSource(states, text_of, lambda text: [ids("x")[0], *tokenize(text)])
    assert before.propose(8).token_ids == ids("{", "ab")
    behind = ForcedSource(states, text_of, lambda text: [*tokenize(text), ids("x")[0]])
    assert behind.propose(8).token_ids == []


def test_asking_and_following_agree_over_a_whole_text() -> None:
    grammar = r'root ::= "{\"name\":" ("x" | "y") ("{\"name\":" | "ab")*'
    asked, other = source_of(grammar), source_of(grammar)
    for token_id in [*ids("{", '"', "na", "me", '":', "x"), *ids('{"', 'name":', "ab", "ab")]:
        asked.propose(4, after=ids("{", '"'))
        asked.propose(2)
        for source in (asked, other):
            source.append([token_id])
        assert asked.propose(8) == other.propose(8)
