"""A draft in the target's own thread: what it drafts, what it shares, what it survives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from outrider import logs
from outrider.engine.guesser import Guess, guesser
from outrider.engine.model import Chunk, Layout
from outrider.engine.model_draft import ModelDraft
from outrider.engine.own_draft import DraftAsk, DraftLine
from outrider.errors import DecodeFailed
from outrider.messages import Rule, SessionParameters
from outrider.sampling import SamplingParameters
from tests.support.toy import NEVER, ToyModel, generate_alone

TEXT = [0, 12, 40, 7, 9, 33]
GREEDY = SamplingParameters(temperature=0.0)
LAYOUTS = (Layout(), Layout(is_pool=True))


def toy(**options: Any) -> ToyModel:
    """Return a draft that never ends its text by itself."""
    return ToyModel(order=256, pad_multiple=1, eos_bias=NEVER, **options)


@pytest.fixture(params=LAYOUTS, ids=["streams", "pool"])
def model(request: pytest.FixtureRequest) -> ToyModel:
    return toy(layouts=(request.param,))


def opening(rule: Rule = Rule.MATCH, sampling: SamplingParameters = GREEDY) -> SessionParameters:
    return SessionParameters(
        session_id=bytes(16),
        attempt=1,
        rule=rule,
        sampling=sampling,
        seed=5,
        choice=0,
        prompt_count=len(TEXT),
        token_limit=100,
        vocabulary=64,
    )


def line(
    model: ToyModel, text: Sequence[int], count: int, session: int = 0, **asked: object
) -> DraftLine:
    parameters = asked.pop("opening", opening())
    guess = guesser(model, parameters, 1, 0.0)  # type: ignore[arg-type]
    salt = asked.pop("salt", b"")
    ask = DraftAsk(list(text), count, guess, **asked)  # type: ignore[arg-type]
    return DraftLine(bytes([session]) * 16, salt, ask)  # type: ignore[arg-type]


def drafted(line: DraftLine) -> list[int]:
    return [guess.token_id for guess in line.guesses]


def alone(text: Sequence[int], count: int, sampling: SamplingParameters = GREEDY) -> list[int]:
    """Return what the draft writes after a text by itself."""
    return list(generate_alone(toy(), list(text), count, sampling, 5))


def ticking(step: float) -> Iterator[float]:
    return itertools.count(0.0, step)


def test_it_drafts_what_the_model_would_write_after_every_text(model: ToyModel):
    draft, text = ModelDraft(model), list(TEXT)
    for count, accepted in ((3, 3), (4, 1), (1, 1), (5, 0), (2, 2)):
        asked = line(model, text, count)
        draft.draft([asked], 1.0)
        assert drafted(asked) == alone(text, count)
        # The text goes on with some of it and a token that the target adds.
        text = [*text, *drafted(asked)[:accepted], 17]


def test_under_shared_noise_it_draws_with_the_noise_of_the_position(model: ToyModel):
    warm = SamplingParameters(temperature=0.8)
    asked = line(model, TEXT, 6, opening=opening(Rule.SHARED_NOISE, warm))
    ModelDraft(model).draft([asked], 1.0)
    assert drafted(asked) == alone(TEXT, 6, warm)


def test_sessions_share_its_decodes(model: ToyModel):
    draft = ModelDraft(model)
    lines = [line(model, [*TEXT, i], 4, session=i) for i in range(4)]
    before = model.decode_count
    draft.draft(lines, 1.0)
    assert [drafted(each) for each in lines] == [alone([*TEXT, i], 4) for i in range(4)]
    shared = model.decodes[before:]
    assert sum(len(decode.chunks) == 4 for decode in shared) == 4


def test_a_line_ends_below_a_confidence_and_at_an_end_token(model: ToyModel):
    draft, whole = ModelDraft(model), line(model, TEXT, 8)
    draft.draft([whole], 1.0)
    unsure = min(guess.confidence for guess in whole.guesses)
    first = next(i for i, guess in enumerate(whole.guesses) if guess.confidence == unsure)
    cut = line(model, TEXT, 8, stop_below=unsure + 1)
    draft.draft([cut], 1.0)
    assert drafted(cut) == drafted(whole)[: first + 1]
    end = drafted(whole)[2]
    ended = line(model, TEXT, 8, ends=frozenset([end]))
    draft.draft([ended], 1.0)
    assert drafted(ended) == drafted(whole)[: drafted(whole).index(end) + 1]


def test_a_long_text_is_read_a_piece_at_a_time_and_drafts_come_then():
    clock = ticking(1.0)
    model = toy()
    draft, text = ModelDraft(model, lambda: next(clock)), [3 + i % 50 for i in range(150)]
    asked = line(model, text, 3)
    tries = 0
    while not asked.guesses and tries < 10:
        asked, tries = line(model, text, 3), tries + 1
        draft.draft([asked], 0.5)  # no time for more than one piece
    assert 1 < tries < 10
    assert drafted(asked) == alone(text, 3)


def test_what_another_session_of_its_salt_holds_is_not_read_again(model: ToyModel):
    draft, text = ModelDraft(model), [3 + i % 50 for i in range(60)]
    draft.draft([line(model, text, 1)], 1.0)
    for session, salt, reads in ((1, b"", False), (2, b"other", True)):
        before = model.decode_count
        asked = line(model, text, 2, session=session, salt=salt)
        draft.draft([asked], 1.0)
        assert drafted(asked) == alone(text, 2)
        read = sum(len(chunk.token_ids) for d in model.decodes[before:] for chunk in d.chunks)
        assert (read > len(text)) is reads


def test_more_sessions_than_sequences_take_turns_in_its_cache(model: ToyModel):
    draft = ModelDraft(model)
    for i in range(30):
        asked = line(model, [*TEXT, i], 2, session=i)
        draft.draft([asked], 1.0)
        assert drafted(asked) == alone([*TEXT, i], 2)


def test_it_drafts_nothing_beyond_its_context(model: ToyModel):
    asked = line(model, [3] * 255, 4)
    ModelDraft(model).draft([asked], 9.0)
    assert not asked.guesses


def test_a_decode_that_fails_costs_a_draft_and_many_the_drafter(model: ToyModel):
    draft = ModelDraft(model)

    def fail(chunks: Sequence[Chunk]) -> None:
        raise DecodeFailed("a bad moment")

    for _ in range(3):
        model.before_decode = fail
        asked = line(model, TEXT, 3)
        draft.draft([asked], 1.0)
        assert not asked.guesses and draft.is_usable
        model.before_decode = None
        again = line(model, TEXT, 3)
        draft.draft([again], 1.0)
        assert drafted(again) == alone(TEXT, 3)
    model.before_decode = fail
    for _ in range(20):
        draft.draft([line(model, TEXT, 3)], 1.0)
    assert not draft.is_usable
    model.before_decode = None
    asked = line(model, TEXT, 3)
    draft.draft([asked], 1.0)
    assert not asked.guesses


def test_a_text_with_tokens_that_it_does_not_have_is_not_drafted_for():
    draft = ModelDraft(ToyModel(order=256, pad_multiple=1, vocabulary_size=60))
    for text in ([*TEXT, 60], [*TEXT[:2], 63, *([5] * 90)], [*TEXT, 61, 4]):
        asked = line(draft.model, text, 3)  # type: ignore[arg-type]
        draft.draft([asked], 1.0)
        assert not asked.guesses
    again = line(draft.model, TEXT, 3)  # type: ignore[arg-type]
    draft.draft([again], 1.0)
    assert len(again.guesses) == 3 and draft.is_usable


def test_a_token_that_cannot_be_picked_ends_its_line_alone(
    model: ToyModel, monkeypatch: pytest.MonkeyPatch
):
    said: list[str] = []
    monkeypatch.setattr(logs, "warning", lambda where, message, **its: said.append(its["detail"]))

    def fail(row: object, base: int, line: Sequence[int]) -> Guess:
        raise ValueError("another shape")

    draft = ModelDraft(model)
    for _ in range(20):
        asked = DraftLine(bytes(16), b"", DraftAsk(list(TEXT), 3, fail))
        beside = line(model, TEXT, 3, session=1)
        draft.draft([asked, beside], 1.0)
        assert not asked.guesses and drafted(beside) == alone(TEXT, 3)
    assert draft.is_usable and said == ["ValueError('another shape')"]
