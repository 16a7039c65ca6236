"""A text that nothing may follow ends where the target alone ends it, with any draft.

A grammar and a ban of the end of texts leave no token possible after a full stop. No draft token
that stands there, rightly or wrongly, takes what comes before it from the text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from outrider.core.acceptance import match
from outrider.engine.grammar_matcher import GrammarVocabulary
from outrider.engine.host import EngineHost, HostOptions
from outrider.engine.llama_sampling import ChainSampler, GrammarMask, Links, _Bias, _Desk
from outrider.engine.model import Layout, Numerics
from outrider.engine.model_draft import ModelDraft
from outrider.errors import InvalidRequest
from outrider.grammar.gbnf import read_grammar
from outrider.messages import Answer, Form, OwnDraftOrder, Round, Rule, SessionParameters, Span
from outrider.sampling import SamplingParameters
from outrider.trees import ROOT, Tree
from target_service.verifier import Verifier
from tests.support.one_session import OneSession
from tests.support.toy import EOS, ToyModel

SIZE = 12
LETTERS, STOP = (8, 9, 10), 7
TEXTS = [b"", b"", b"", b"?", b" ", b"\n", b",", b".", b"a", b"b", b"c", b"d"]
PROMPT = [0, 9, 10]
SAMPLING = SamplingParameters(
    top_k=0, top_p=1.0, min_p=0.0, grammar='root ::= [a-c]+ "."', logit_bias=((EOS, -math.inf),)
)


class Grammatical(ToyModel):
    """A toy with the chain of a real model, as far as the requests here need one."""

    def sampler(self, parameters: SamplingParameters, seed: int = 0, choice: int = 0) -> Any:
        vocabulary = GrammarVocabulary(TEXTS, np.arange(SIZE) == EOS)
        grammar = GrammarMask(vocabulary.matcher(read_grammar(parameters.grammar)))
        links = Links([_Bias(parameters.logit_bias)], grammar, [], None)
        return ChainSampler(parameters, _Desk(SIZE), links)


def toy(**options: Any) -> Grammatical:
    return Grammatical(vocabulary_size=SIZE, spread=1.0, context=64, order=64, **options)


def opening(seed: int, rule: Rule = Rule.SHARED_NOISE) -> SessionParameters:
    return SessionParameters(
        session_id=bytes(16),
        attempt=1,
        rule=rule,
        sampling=SAMPLING,
        seed=seed,
        choice=0,
        prompt_count=len(PROMPT),
        token_limit=50,
        vocabulary=SIZE,
        end_token_ids=frozenset({EOS}),
    )


@pytest.fixture(scope="module")
def host() -> Iterator[EngineHost]:
    model = toy(layouts=(Layout(is_pool=True),))
    host = EngineHost(lambda: model, HostOptions(numerics=Numerics.NATIVE))
    host.start().result(30)
    yield host
    host.stop()


def write(host: EngineHost, seed: int, guess: Callable[[list[int]], Tree]) -> list[int]:
    """Return the text that rounds write until one is refused, decided by their rows."""
    verifier, text = Verifier(host._model, opening(seed)), list(PROMPT)
    answers: list[Answer] = []
    for number in range(1, 60):
        tree = guess(text)
        parents = () if tree.is_chain else tree.parents
        round_ = Round(number, Span(0, text), tree.token_ids, Form.SAMPLED, parents=parents)

        def job(lease: Any, asked: Round = round_) -> Any:
            return verifier.verify(lease, asked, answers.append)

        try:
            host.submit(bytes(16), job, text).future.result(30)
        except InvalidRequest as error:
            assert str(error) == "sampling: leaves no token possible here"
            return text
        answer = answers.pop()
        walk = tree.first(answer.drafted).walk(answer.rows.sampled)
        text = [*text, *tree.tokens(walk.nodes), walk.next_token_id]
    raise AssertionError("the text does not end")


def chains(alone: Sequence[int], dice: Random) -> Callable[[list[int]], Tree]:
    """Return a guesser that is right as far as a full stop, which it puts anywhere."""

    def guess(text: list[int]) -> Tree:
        right = alone[len(text) :][: dice.randrange(5)]
        return Tree.chain([*right, STOP, dice.choice(LETTERS)])

    return guess


def trees(alone: Sequence[int], dice: Random) -> Callable[[list[int]], Tree]:
    """Return a guesser that lets a full stop follow everything, and more follow that."""

    def guess(text: list[int]) -> Tree:
        tokens, parents, way = list[int](), list[int](), ROOT
        for token_id in alone[len(text) :][: dice.randrange(5)]:
            if token_id != STOP:
                tokens, parents = [*tokens, STOP, token_id], [*parents, way, way]
                way = len(tokens) - 1
        return Tree.checked([*tokens, STOP, LETTERS[0]], [*parents, way, len(tokens)])

    return guess


def test_neither_a_wrong_nor_a_right_draft_ends_a_text_earlier(host: EngineHost) -> None:
    lengths = set()
    for seed in range(12):
        alone = write(host, seed, lambda _: Tree((), ()))
        assert alone[-1] == STOP
        assert write(host, seed, chains(alone, Random(seed))) == alone
        assert write(host, seed, trees(alone, Random(seed))) == alone
        lengths.add(len(alone))
    assert len(lengths) > 3


def test_nothing_is_sampled_after_a_token_that_is_not_what_was_sampled() -> None:
    session = OneSession(toy())
    session.begin(opening(1))
    session.write(Round(1, Span(0, PROMPT), (), Form.SAMPLED))
    [right] = session.answers[-1].rows.sampled
    [wrong, _] = [each for each in LETTERS if each != right]
    asked = list[int]()
    chain, real = ChainSampler, ChainSampler.distribution
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chain, "distribution", lambda s, row: asked.append(1) or real(s, row))
        session.write(Round(2, Span(0, PROMPT), [wrong, *LETTERS], Form.SAMPLED))
    assert session.answers[-1].rows.sampled == [right] * 5 and len(asked) == 1


def test_a_draft_that_is_drawn_is_judged_as_far_as_a_text_can_go() -> None:
    draft = ModelDraft(toy(like=1, agreement=0.9))
    session, accepted = OneSession(toy(), draft), 0
    order = OwnDraftOrder(count=3)
    for seed in range(12):
        session.begin(opening(seed, Rule.REJECTION))
        asked = Round(1, Span(0, PROMPT), (), Form.SAMPLED, continue_count=40, own_draft=order)
        with pytest.raises(InvalidRequest, match="leaves no token possible here"):
            session.write(asked)
        text = list[int]()
        for answer in session.answers:
            for own, rows in answer.decodes:
                assert len(rows) == answer.drafted + len(own.token_ids) + 1
                verdict = match(own.token_ids, rows.sampled)
                accepted += verdict.accepted_count
                text += [*own.token_ids[: verdict.accepted_count], verdict.next_token_id]
        assert STOP not in text[:-1] and text[-1] == STOP
    assert accepted > 12


def test_rows_to_judge_by_end_where_a_text_does() -> None:
    session = OneSession(toy())
    session.begin(opening(1, Rule.REJECTION))

    def row_count(*draft: int) -> int:
        session.write(Round(1, Span(0, PROMPT), draft, Form.DISTRIBUTIONS))
        return len(session.answers[-1].rows.distributions)

    assert row_count(8, 9, STOP, 8) == 3  # after the full stop there is none
    assert row_count(8, 3, STOP, 8) == 5  # it stands after what a grammar forbids
    with pytest.raises(InvalidRequest, match="leaves no token possible here"):
        session.write(Round(1, Span(0, [*PROMPT, 8, STOP]), (), Form.DISTRIBUTIONS))
