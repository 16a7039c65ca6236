"""An MTP head as a target's own draft: what is accepted of it, and that no text changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.engine.gguf_check import read_head
from outrider.engine.guesser import guesser
from outrider.engine.head_draft import HeadDraft, Pairs
from outrider.engine.hidden_rows import HIDDEN_ROWS
from outrider.engine.host import EngineHost
from outrider.engine.hosting import HostOptions
from outrider.engine.job import Job, JobSteps, Lease, Step
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_heads import LlamaHead
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Numerics
from outrider.engine.own_draft import DraftAsk, DraftLine
from outrider.errors import InvalidConfig
from outrider.messages import Rule, SessionParameters
from outrider.sampling import SamplingParameters
from tests.support.tiny_heads import (
    MTP_TARGETS,
    Tensors,
    write_dflash,
    write_eagle3,
    write_mtp,
)

PROMPT = [3 + 37 * i % 300 for i in range(20)]
GREEDY = SamplingParameters(temperature=0.0)
DRAFTED = 3  # tokens of a round
SESSION = bytes(16)


@pytest.fixture(scope="module", params=MTP_TARGETS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mtp(tmp_path_factory.mktemp("heads") / "target.gguf", request.param)


def load(path: Path, mtp: bool = True, sequences: int = 4, **config: Any) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(
            path=path,
            context=512,
            sequence_count=sequences,
            thread_count=1,
            pad_multiple=config.pop("pad_multiple", 1),
            mtp=mtp,
            **config,
        )
    )


@pytest.fixture
def model(path: Path) -> Iterator[LlamaModel]:
    model = load(path)
    yield model
    model.close()


@pytest.fixture
def draft(model: LlamaModel) -> Iterator[HeadDraft]:
    draft = HeadDraft(model.open_head(), model)
    yield draft
    draft.close()


def opening(rule: Rule = Rule.MATCH, sampling: SamplingParameters = GREEDY) -> SessionParameters:
    return SessionParameters(
        session_id=SESSION,
        attempt=1,
        rule=rule,
        sampling=sampling,
        seed=5,
        choice=0,
        prompt_count=len(PROMPT),
        token_limit=400,
        vocabulary=320,
    )


def ask(
    draft: HeadDraft,
    text: Sequence[int],
    session: int = 0,
    sequence: int = 0,
    parameters: SessionParameters | None = None,
) -> list[int]:
    """Return what the head drafts after a text that the target holds but for its end."""
    guess = guesser(draft.model, parameters or opening(), 1, 0.0)
    asked = DraftLine(bytes([session]) * 16, b"", DraftAsk(list(text), DRAFTED, guess), sequence)
    draft.draft([asked], 1.0)
    return [guess.token_id for guess in asked.guesses]


def best(row: NDArray[np.float32]) -> int:
    return int(row.argmax())


def round_of(model: LlamaModel, text: list[int], drafted: Sequence[int], sequence: int = 0) -> int:
    """Verify a draft after a text, which gets what the target says; return what was accepted."""
    held = model.truncate(sequence, len(text) - 1)
    ids = [*text[held:], *drafted]
    [rows] = model.decode([Chunk(sequence, held, ids, len(drafted) + 1)])
    accepted = 0
    while accepted < len(drafted) and best(rows[accepted]) == drafted[accepted]:
        accepted += 1
    text += [*drafted[:accepted], best(rows[accepted])]
    model.truncate(sequence, len(text) - 1)
    return accepted


def start(model: LlamaModel, prompt: Sequence[int] = PROMPT, sequence: int = 0) -> list[int]:
    """Return a prompt with its first token behind it."""
    model.truncate(sequence, 0)
    text = list(prompt)
    round_of(model, text, (), sequence)
    return text


class Driver:
    """The head driven as llama.cpp drives it: every row of the target is read when it comes."""

    def __init__(self, head: LlamaHead, model: LlamaModel) -> None:
        self._head, self._model = head, model
        self._pending = np.zeros((1, head.width), np.float32)

    def read(self, token_ids: Sequence[int], position: int, accepted: int | None = None) -> None:
        """Read the tokens of a decode; of a draft, the row after `accepted` is the next one's."""
        first, rows = self._model.hidden_rows(0)
        mine = rows[position - first :][: len(token_ids)]
        self._head.truncate(0, position)
        before = np.concatenate([self._pending, mine[:-1]])
        self._head.decode([Pairs(0, position, token_ids, before)])
        last = len(token_ids) - 1 if accepted is None else accepted
        self._pending = mine[last : last + 1].copy()
        self._head.truncate(0, position + last + 1)

    def draft(self, text: Sequence[int]) -> list[int]:
        drafted, token_id, row = list[int](), text[-1], self._pending
        for i in range(DRAFTED):
            pair = Pairs(0, len(text) - 1 + i, [token_id], row)
            [(logits, hidden)] = self._head.decode([pair])
            token_id, row = best(logits), hidden.copy()
            drafted.append(token_id)
        self._head.truncate(0, len(text) - 1)
        return drafted


def test_it_drafts_what_llama_cpp_s_own_driver_would(model: LlamaModel, draft: HeadDraft) -> None:
    head = model.open_head()
    driver, text = Driver(head, model), start(model)
    driver.read(PROMPT, 0)
    accepted = rounds = 0
    while len(text) < 60:  # as far as no row is dropped
        drafted = ask(draft, text)
        assert drafted == driver.draft(text)
        before = list(text)
        here = round_of(model, text, drafted)
        driver.read([before[-1], *drafted], len(before) - 1, here)
        accepted, rounds = accepted + here, rounds + 1
    assert accepted / (DRAFTED * rounds) > 0.4
    head.close()


def test_the_rows_are_the_target_s_and_decide_what_is_accepted(
    model: LlamaModel, draft: HeadDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    def acceptance() -> float:
        text, accepted, rounds = start(model), 0, 0
        while len(text) < 60:
            accepted, rounds = accepted + round_of(model, text, ask(draft, text)), rounds + 1
        return accepted / (DRAFTED * rounds)

    right, rows = acceptance(), model.hidden_rows
    draft.forget(SESSION)
    monkeypatch.setattr(model, "hidden_rows", lambda s: (rows(s)[0], rows(s)[1][::-1]))
    assert acceptance() < 0.75 * right


def test_at_a_temperature_it_draws_with_the_noise_of_the_request(
    model: LlamaModel, draft: HeadDraft
) -> None:
    warm = opening(Rule.SHARED_NOISE, SamplingParameters(temperature=0.8))
    draw, shares = guesser(model, warm, 1, 0.0), []
    for parameters in (warm, opening()):
        accepted = rounds = 0
        for prompt in ([*PROMPT, 5 + i] for i in range(8)):
            text = start(model, prompt)
            while len(text) < 60:
                drafted, rounds = ask(draft, text, parameters=parameters), rounds + 1
                [rows] = model.decode([Chunk(0, len(text) - 1, [text[-1], *drafted], DRAFTED + 1)])
                for row, token_id in zip(rows, [*drafted, None], strict=True):
                    text.append(draw(row, len(text), text).token_id)
                    if text[-1] != token_id:
                        break
                    accepted += 1
                model.truncate(0, len(text) - 1)
        shares.append(accepted / (DRAFTED * rounds))
    assert shares[0] > 1.15 * shares[1]


def test_after_a_gap_in_the_rows_it_begins_with_what_there_is(
    model: LlamaModel, draft: HeadDraft
) -> None:
    text = start(model)
    ask(draft, text)
    for _ in range(150):  # written without a draft
        round_of(model, text, ())
    drafted, head = ask(draft, text), model.open_head()
    _, rows = model.hidden_rows(0)
    begin = len(text) - len(rows)
    [(logits, _)] = head.decode([Pairs(0, begin, text[begin:], rows)])
    assert len(rows) == HIDDEN_ROWS and len(drafted) == DRAFTED
    assert drafted[0] == best(logits)
    head.close()


def test_a_text_that_the_target_has_not_read_is_not_drafted_for(
    model: LlamaModel, draft: HeadDraft
) -> None:
    text = start(model)
    assert not ask(draft, [*text, 7, 8])
    assert not ask(draft, text[:1])
    assert not ask(draft, text, sequence=2)
    assert len(ask(draft, text)) == DRAFTED


def test_it_follows_a_text_that_goes_back(model: LlamaModel, draft: HeadDraft) -> None:
    text = start(model)
    for _ in range(8):
        round_of(model, text, ask(draft, text))
    other = [*text[:25], 77]
    round_of(model, other, ())
    drafted = ask(draft, other)
    fresh = ask(draft, other, session=1)
    assert drafted == fresh and len(drafted) == DRAFTED


def test_more_sessions_than_sequences_take_turns_in_its_cache(
    model: LlamaModel, draft: HeadDraft
) -> None:
    text = start(model)
    drafted = ask(draft, text)
    assert all(ask(draft, text, session) == drafted for session in [*range(1, 12), 0])


def test_a_copied_sequence_has_its_rows(model: LlamaModel, draft: HeadDraft) -> None:
    text = start(model)
    drafted = ask(draft, text)
    model.copy_prefix(0, 1, len(PROMPT) - 1)
    copied = list(PROMPT)
    round_of(model, copied, (), 1)
    assert copied == text and ask(draft, copied, session=1, sequence=1) == drafted


def test_sessions_share_its_decodes_and_draft_as_they_do_alone(
    model: LlamaModel, draft: HeadDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [start(model, [*PROMPT, 5 + i], i) for i in range(4)]
    alone = [ask(draft, text, i, i) for i, text in enumerate(texts)]
    for i in range(4):
        draft.forget(bytes([i]) * 16)
    guess, decodes, decode = guesser(model, opening(), 1, 0.0), [], LlamaHead.decode

    def counted(head: LlamaHead, pairs: Sequence[Pairs]) -> Any:
        decodes.append(len(pairs))
        return decode(head, pairs)

    monkeypatch.setattr(LlamaHead, "decode", counted)
    order = (2, 0, 3, 1)
    lines = [DraftLine(bytes([i]) * 16, b"", DraftAsk(texts[i], DRAFTED, guess), i) for i in order]
    draft.draft(lines, 1.0)
    assert [[g.token_id for g in each.guesses] for each in lines] == [alone[i] for i in order]
    assert decodes == [4] * DRAFTED


def test_a_head_that_computes_no_numbers_costs_a_draft_and_then_is_off(
    model: LlamaModel, draft: HeadDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, rows = start(model), model.hidden_rows
    with monkeypatch.context() as patched:
        patched.setattr(model, "hidden_rows", lambda s: (rows(s)[0], rows(s)[1] * np.nan))
        assert not ask(draft, text)
    assert draft.is_usable and len(ask(draft, text)) == DRAFTED
    monkeypatch.setattr(model, "hidden_rows", lambda s: (rows(s)[0], rows(s)[1] * np.nan))
    for _ in range(8):
        draft.forget(SESSION)
        ask(draft, text)
    assert not draft.is_usable


def test_keeping_hidden_rows_changes_no_bit_of_the_logits(path: Path) -> None:
    found = []
    for mtp in (False, True):
        model = load(path, mtp, pad_multiple=4, pool=False)
        [rows] = model.decode([Chunk(0, 0, PROMPT, 2)])
        logits = [row.copy() for row in rows]
        for i in range(5):
            [rows] = model.decode([Chunk(0, len(PROMPT) + 3 * i, [7 + i, 8, 9], 3)])
            logits += [row.copy() for row in rows]
        found.append(np.array(logits))
        model.close()
    assert np.array_equal(*found)


DAMAGE: dict[str, Callable[[Tensors], object]] = {
    "a missing tensor": lambda tensors: tensors.pop("blk.2.attn_output.weight"),
    "another width": lambda tensors: tensors.update(
        {"blk.2.nextn.eh_proj.weight": np.zeros((64, 96), np.float32)}
    ),
}


@pytest.mark.parametrize("architecture", MTP_TARGETS)
@pytest.mark.parametrize("edit", DAMAGE.values(), ids=DAMAGE)
def test_a_file_with_a_damaged_head_is_refused_in_a_line(
    tmp_path: Path, architecture: str, edit: Callable[[Tensors], object]
) -> None:
    """llama.cpp looks at the tensors of a head that it is told to leave out, too."""
    path = write_mtp(tmp_path / "m.gguf", architecture, edit=edit)
    with pytest.raises(InvalidConfig, match=r"blk\.2|number of tensors") as refused:
        load(path)
    assert "\n" not in str(refused.value)


def test_a_target_whose_head_is_not_supported_runs_without(tmp_path: Path) -> None:
    path = write_mtp(
        tmp_path / "m.gguf", "glm4moe", edit=lambda t: t.pop("blk.2.nextn.eh_proj.weight")
    )
    model = load(path)
    assert not model.has_head
    assert model.head_fault == "has an MTP head without blk.2.nextn.eh_proj.weight"
    assert len(start(model)) == len(PROMPT) + 1
    model.close()


def test_a_head_without_its_target_is_no_model(tmp_path: Path) -> None:
    for path in (
        write_mtp(tmp_path / "mtp.gguf", "qwen35", is_alone=True),
        write_eagle3(tmp_path / "eagle3.gguf"),
        write_dflash(tmp_path / "dflash.gguf"),
        write_dflash(tmp_path / "dspark.gguf", has_markov=True),
    ):
        head = read_head(path)
        assert head is not None and head.is_alone and head.kind.value == path.stem
        assert not head.fault
        with pytest.raises(InvalidConfig, match="head of another model"):
            load(path)


# --- in an engine ---


def writes(prompt: Sequence[int], count: int, guess: Any) -> Job:
    """Return a job that writes greedily, with drafts where there is what picks them."""

    def job(lease: Lease) -> JobSteps:
        text, accepted = list(prompt), 0
        while len(text) < len(prompt) + count:
            drafted: list[int] = []
            if guess is not None and len(text) > len(prompt):
                guesses = yield DraftAsk(text, DRAFTED, guess)
                drafted = [each.token_id for each in guesses]
            missing = lease.reconcile([*text, *drafted], len(drafted) + 1)
            rows = yield Step(missing, len(drafted) + 1)
            n = 0
            while n < len(drafted) and best(rows[n]) == drafted[n]:
                n += 1
            text += [*drafted[:n], best(rows[n])]
            accepted += n
            lease.keep(len(text) - 1)
        return text[: len(prompt) + count], accepted

    return job


def written(path: Path, mtp: bool, numerics: Numerics, users: int) -> tuple[list[list[int]], int]:
    """Return what users write in an engine with a head or without, and how much was accepted."""
    host = EngineHost(
        lambda: load(path, mtp, pad_multiple=4, pool=False),
        HostOptions(numerics=numerics, first_quiet_seconds=1e9, room_seconds=60.0),
        load_draft=(lambda model: HeadDraft(model.open_head(), model)) if mtp else None,
    )
    loaded = host.start().result()
    guess = guesser(loaded.model, opening(), 1, 0.0) if mtp else None
    prompts = [[*PROMPT, 5 + i, *PROMPT[i:]] for i in range(users)]
    tickets = [
        host.submit(bytes([i]) * 16, writes(prompt, 60, guess), prompt)
        for i, prompt in enumerate(prompts)
    ]
    results = [ticket.future.result(60) for ticket in tickets]
    host.stop()
    return [text for text, _ in results], sum(count for _, count in results)


@pytest.mark.parametrize(
    ("architecture", "numerics", "users"),
    [("glm4moe", Numerics.EXACT, 8), ("qwen35", Numerics.NATIVE, 1)],
)
def test_users_write_the_same_text_with_it(
    tmp_path: Path, architecture: str, numerics: Numerics, users: int
) -> None:
    """More of them than sequences where bits do not depend on who shares a decode."""
    path = write_mtp(tmp_path / "m.gguf", architecture)
    plain, none = written(path, False, numerics, users)
    drafted, accepted = written(path, True, numerics, users)
    assert drafted == plain and none == 0
    assert accepted > 15 * users
