"""What guessers that translate ask of a sampler chain, and which tokens they leave alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from outrider.distribution import Distribution, softmax
from outrider.engine.guesser import Guess, own_sampling
from outrider.engine.own_draft import DraftAsk, DraftLine
from outrider.engine.string_guesser import StringGuesser
from outrider.messages import Rule, SessionParameters, Span
from outrider.sampling import MAX_BIASES, SamplingParameters
from outrider.translation import TokenTable, Translation
from tests.support.vocabularies import AB_AND_BA, table

ROW = np.array([-9, -9, 2, 1, 0], np.float32)  # of <s> </s> a b ab


class Following:
    """A sampler with state that notes what it is fed."""

    has_state = True
    mirostat_mu = None

    def __init__(self, fed: list[tuple[int, bool]] | None = None) -> None:
        self.fed = fed if fed is not None else []
        self.seen: list[list[tuple[int, bool]]] = []

    def sampler(self, *_: Any) -> Following:
        return self

    def accept(self, token_id: int, is_prompt: bool = False) -> None:
        self.fed.append((token_id, is_prompt))

    def clone(self) -> Following:
        copy = Following(list(self.fed))
        copy.seen = self.seen
        return copy

    def distribution(self, row: np.ndarray[Any, Any]) -> Distribution:
        self.seen.append(list(self.fed))
        return softmax(row)


def session(**more: Any) -> SessionParameters:
    fields = {"session_id": bytes(16), "attempt": 1, "rule": Rule.SHARED_NOISE, "seed": 1}
    fields |= {"choice": 0, "prompt_count": 5, "token_limit": 9, "vocabulary": 5}
    return SessionParameters(**{**fields, "sampling": SamplingParameters(), **more})


def fed_after(line: Sequence[int], base: int, **more: Any) -> list[tuple[int, bool]]:
    """Return what the chain was fed before a draft's next token."""
    chain = Following()
    its = StringGuesser(chain, session(**more), Translation(*AB_AND_BA))  # type: ignore[arg-type]
    its.text(line, base)
    its.write(ROW, line)
    return chain.seen[-1]


@pytest.mark.fault(
    "text",
    "a grammar, or a penalty, with a draft at string level",
    before="it was fed the answer as if it were the prompt, and then left out of each draft token",
    now="the prompt's own tokens are counted, and what was dropped of the text is fed too",
)
def test_the_chain_is_fed_the_prompts_own_tokens_as_the_prompt() -> None:
    ab, a = 4, 2
    prompt = [0, 2, 3, 2, 3]  # <s> a b a b, which is <s> ab ab to the draft
    assert fed_after([*prompt, 2], 6) == [(0, True), (ab, True), (ab, True), (a, False)]
    assert fed_after([*prompt, 2], 5) == [(0, True), (ab, True), (ab, True), (a, False)]


def test_the_chain_is_fed_what_was_dropped_of_the_text() -> None:
    fed = fed_after([0, 2, 2], 3, prompt_count=2, dropped=Span(2, [3, 3]))
    assert [token_id for token_id, _ in fed] == [0, 2, 3, 3, 2]


def test_a_token_that_is_hardly_better_than_the_next_is_not_drafted() -> None:
    for ratio, written in ((4.0, 0), (2.0, 1)):  # the best one is e times as likely as the second
        asked = session(min_ratio=ratio, rule=Rule.MATCH)
        its = StringGuesser(Following(), asked, Translation(*AB_AND_BA))  # type: ignore[arg-type]
        count = len(its.text([0, 2], 2))
        its.write(ROW, [0, 2])
        assert len(its._own) - count == written
        assert its.is_over is (not written)


def test_biases_of_many_tokens_that_are_one_are_no_more_than_a_chain_takes() -> None:
    double = [b"%d" % (i // 2) for i in range(2 * MAX_BIASES)]
    draft = TokenTable(texts=double, names=double, type=2)
    target = TokenTable(texts=double[::2], names=double[::2], type=2)
    biases = tuple((i, 1.0 + i) for i in range(MAX_BIASES))
    own = own_sampling(SamplingParameters(logit_bias=biases), Translation(draft, target))
    assert len(own.logit_bias) == MAX_BIASES
    assert own.logit_bias[:4] == ((0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0))


def test_a_guess_that_the_own_draft_has_no_token_for_ends_its_line() -> None:
    its = Translation(table(b"a"), table(b"x", b"a"))

    def guess(row: Any, base: int, line: Sequence[int], rivals: int = 0) -> Guess:
        return Guess(2, 200)  # x, which the draft does not have

    line = DraftLine(bytes(16), b"", DraftAsk([0, 3], 4, guess))
    line.translate(its, its.reader())
    line.take(ROW)
    assert line.is_over
    assert -1 not in line.own_ids


@pytest.mark.fault(
    "text",
    "a token that a foreign draft writes and that was added to the target's vocabulary too",
    before="at string level the pieces of its text were sent, which the target never writes",
    now="the target's token is",
)
@pytest.mark.parametrize("is_text", [True, False], ids=["text at the target", "silent there"])
def test_an_added_token_is_written_as_the_targets_own(is_text: bool) -> None:
    texts = [b"", b"a", b"<", b"b", b">", b"<b-b>"]
    names = [b"<s>", *texts[1:]]
    draft = TokenTable(texts=texts, names=names, type=2, bos=0)
    target = TokenTable(texts=[*texts[:5], b"<b-b>" * is_text], names=names, type=2, bos=0)
    guesser = StringGuesser(Following(), session(), Translation(draft, target))  # type: ignore[arg-type]
    line, written = [0, 1], list[int]()
    for best in (1, 5, 5, 3, 4):  # a <b-b> <b-b> b >
        guesser.text(line, 2)
        row = np.full(len(texts), -90.0, np.float32)
        row[best] = 90.0
        guesser.write(row, line)
        while guess := guesser.settled():
            line.append(guess.token_id)
            written.append(guess.token_id)
    assert written[:3] == [1, 5, 5]
    assert not guesser.is_over
