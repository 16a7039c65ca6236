"""An MTP head as a target's own draft: what is accepted of it, and that no text changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.engine.block_draft import draft_of
from outrider.engine.gguf_check import check_draft
from outrider.engine.guesser import guesser
from outrider.engine.head_draft import Head, HeadDraft, Pairs
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
from outrider.row_window import HIDDEN_ROWS
from outrider.sampling import SamplingParameters
from tests.support.tiny_heads import (
    MTP_BLOCKS,
    MTP_TARGETS,
    write_dflash,
    write_eagle3,
    write_mtp,
)

PROMPT = [3 + 37 * i % 300 for i in range(20)]
GREEDY = SamplingParameters(temperature=0.0)
DRAFTED = 3  # tokens of a round
SESSION = bytes(16)


@pytest.fixture(scope="module", params=("glm4moe", "qwen35", "qwen3next", "step35"))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a target of plain attention, with snapshots, with checkpoints, with windows."""
    return write_mtp(tmp_path_factory.mktemp("heads") / "target.gguf", request.param, noise=0.01)


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
    count: int = DRAFTED,
) -> list[int]:
    """Return what the head drafts after a text that the target holds but for its end."""
    guess = guesser(draft.model, parameters or opening(), 1, 0.0)
    asked = DraftLine(bytes([session]) * 16, b"", DraftAsk(list(text), count, guess), sequence)
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
    """The head driven as llama.cpp drives it: every row of the target is read when it comes.

    Of several blocks each reads everything again, on its own.
    """

    def __init__(self, head: Head, model: LlamaModel) -> None:
        self._head, self._model = head, model
        self._pending = np.zeros((head.lag, head.row_width), np.float32)

    def read(self, token_ids: Sequence[int], position: int, accepted: int | None = None) -> None:
        """Read the tokens of a decode; of a draft, the row after `accepted` is the next one's."""
        head, (first, rows) = self._head, self._model.hidden_rows(0)
        mine = rows[position - first :][: len(token_ids)]
        skipped = 0 if position else head.first_token
        before, ids = np.concatenate([self._pending, mine[:-1]])[skipped:], token_ids[skipped:]
        if not head.lag:
            before, ids = mine, [*token_ids, 0]
        for block in range(head.block_count):
            head.truncate(0, position)
            head.decode([Pairs(0, position + skipped, ids, before)], block)
        last = len(token_ids) - 1 if accepted is None else accepted
        self._pending = mine[last : last + head.lag].copy()
        head.truncate(0, position + last + 1)

    def draft(self, text: Sequence[int], count: int = DRAFTED) -> list[int]:
        head, position, ids, rows = self._head, len(text) - 1, [text[-1]], self._pending
        while len(ids) <= count:
            block, first = 0, len(ids) - 1
            if head.block_count > 1:
                head.truncate(0, position)
                block, first = first, 0
            pairs = Pairs(0, position + first, ids[first:], rows, len(ids) > 1, count)
            [(logits, hidden)] = head.decode([pairs], block)
            before = [rows] if head.block_count > 1 else []
            ids, rows = [*ids, *map(best, logits)], np.concatenate([*before, hidden])
        head.truncate(0, position)
        return ids[1:]


def check_against_driver(
    model: LlamaModel, open_head: Callable[[], Head], counts: Iterator[int]
) -> float:
    """Compare drafts of these lengths with a driver's; return the share that was accepted."""
    head = open_head()
    draft, driver, text = draft_of(open_head(), model), Driver(head, model), start(model)
    driver.read(PROMPT, 0)
    accepted = asked = 0
    while len(text) < 60:  # as far as no row is dropped
        count = next(counts)
        drafted = ask(draft, text, count=count)
        assert drafted == driver.draft(text, count)
        before = list(text)
        here = round_of(model, text, drafted)
        driver.read([before[-1], *drafted], len(before) - 1, here)
        accepted, asked = accepted + here, asked + count
    for each in (draft, head, model):
        each.close()
    return accepted / asked


@pytest.mark.parametrize("architecture", MTP_TARGETS)
def test_it_drafts_what_llama_cpp_s_own_driver_would(tmp_path: Path, architecture: str) -> None:
    model = load(write_mtp(tmp_path / "m.gguf", architecture, noise=0.01))
    assert check_against_driver(model, model.open_head, repeat(DRAFTED)) > 0.25


@pytest.mark.parametrize("architecture", MTP_BLOCKS)
@pytest.mark.parametrize("blocks", [2, 3])
def test_of_several_blocks_each_drafts_a_token_as_in_llama_cpp(
    tmp_path: Path, architecture: str, blocks: int
) -> None:
    """However many are asked, so that some blocks read later what the first has read."""
    model = load(write_mtp(tmp_path / "m.gguf", architecture, noise=0.01, blocks=blocks))
    counts = (1 + int(n) for n in np.random.default_rng(5).integers(blocks, size=60))
    assert check_against_driver(model, model.open_head, counts) > 0.2


def test_no_more_tokens_are_drafted_than_it_has_blocks(tmp_path: Path) -> None:
    model = load(write_mtp(tmp_path / "m.gguf", "mimo2", blocks=2))
    draft, text = HeadDraft(model.open_head(), model), start(model)
    assert draft.most_tokens == 2
    both = ask(draft, text, count=8)
    assert len(both) == 2 and ask(draft, text, count=1) == both[:1]
    draft.close()
    model.close()


def test_sessions_of_a_head_of_several_blocks_draft_together_as_they_do_alone(
    tmp_path: Path,
) -> None:
    """Of texts and drafts of several lengths, and of more sessions than sequences."""
    model = load(write_mtp(tmp_path / "m.gguf", "mimo2", blocks=3))
    draft, guess = HeadDraft(model.open_head(), model), guesser(model, opening(), 1, 0.0)
    texts, counts = [start(model, PROMPT[i:], i) for i in range(4)], (3, 1, 2, 3)
    alone = [ask(draft, text, i, i, count=3) for i, text in enumerate(texts)]
    for first in (4, 8, 12):  # sessions that take the sequences of others
        lines = [
            DraftLine(bytes([first + i]) * 16, b"", DraftAsk(texts[i], counts[i], guess), i)
            for i in (2, 0, 3, 1)
        ]
        draft.draft(lines, 1.0)
        drafted = {line.sequence: [g.token_id for g in line.guesses] for line in lines}
        assert drafted == {i: alone[i][: counts[i]] for i in range(4)}
        assert [ask(draft, text, first + i, i, count=3) for i, text in enumerate(texts)] == alone
    draft.close()
    model.close()


def test_blocks_that_were_not_asked_read_what_they_missed(tmp_path: Path) -> None:
    """Beyond the rows that are kept, too, where a sequence begins anew."""
    model = load(write_mtp(tmp_path / "m.gguf", "step35", blocks=3))
    draft, text = HeadDraft(model.open_head(), model), start(model)
    for length in (10, 100):
        for _ in range(length):
            round_of(model, text, ask(draft, text, count=1))
        drafted = ask(draft, text)
        assert len(drafted) == 3
    draft.forget(SESSION)
    assert ask(draft, text) == drafted
    draft.close()
    model.close()


def acceptance(model: LlamaModel, draft: HeadDraft) -> float:
    text, accepted, rounds = start(model), 0, 0
    while len(text) < 60:
        accepted, rounds = accepted + round_of(model, text, ask(draft, text)), rounds + 1
    return accepted / (DRAFTED * rounds)


def test_the_rows_are_the_target_s_and_decide_what_is_accepted(
    model: LlamaModel, draft: HeadDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, rows = acceptance(model, draft), model.hidden_rows
    draft.forget(SESSION)
    monkeypatch.setattr(model, "hidden_rows", lambda s: (rows(s)[0], rows(s)[1][::-1]))
    assert acceptance(model, draft) < 0.75 * right


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
                held = model.truncate(0, len(text) - 1)
                ids = [*text[held:], *drafted]
                [rows] = model.decode([Chunk(0, held, ids, DRAFTED + 1)])
                for row, token_id in zip(rows, [*drafted, None], strict=True):
                    text.append(draw(row, len(text), text).token_id)
                    if text[-1] != token_id:
                        break
                    accepted += 1
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
    [([logits], _)] = head.decode([Pairs(0, begin, text[begin:], rows)])
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

    def counted(head: LlamaHead, pairs: Sequence[Pairs], block: int) -> Any:
        decodes.append(len(pairs))
        return decode(head, pairs, block)

    monkeypatch.setattr(LlamaHead, "decode", counted)
    order = (2, 0, 3, 1)
    lines = [DraftLine(bytes([i]) * 16, b"", DraftAsk(texts[i], DRAFTED, guess), i) for i in order]
    draft.draft(lines, 1.0)
    assert [[g.token_id for g in each.guesses] for each in lines] == [alone[i] for i in order]
    assert decodes == [4] * DRAFTED


def test_sessions_read_as_many_tokens_each_however_many_they_missed(
    model: LlamaModel, draft: HeadDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp decodes streams with other numbers of tokens one after the other."""
    texts = [start(model, [*PROMPT, 5 + i], i) for i in range(3)]
    for i, text in enumerate(texts):
        ask(draft, text, i, i)
        for _ in range(1 + 2 * i):
            round_of(model, text, (), i)
    guess, read, decode = guesser(model, opening(), 1, 0.0), [], LlamaHead.decode

    def counted(head: LlamaHead, pairs: Sequence[Pairs], block: int) -> Any:
        read.append([len(each.token_ids) for each in pairs])
        return decode(head, pairs, block)

    with monkeypatch.context() as patched:
        patched.setattr(LlamaHead, "decode", counted)
        lines = [
            DraftLine(bytes([i]) * 16, b"", DraftAsk(text, DRAFTED, guess), i)
            for i, text in enumerate(texts)
        ]
        draft.draft(lines, 1.0)
    assert all(len(set(counts)) == 1 for counts in read) and read[0][0] >= 5
    for i, text in enumerate(texts):
        assert [g.token_id for g in lines[i].guesses] == ask(draft, text, i, i)


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


@pytest.mark.parametrize("architecture", MTP_TARGETS)
def test_keeping_hidden_rows_changes_no_bit_of_the_logits(
    tmp_path: Path, architecture: str
) -> None:
    path, found = write_mtp(tmp_path / "m.gguf", architecture), []
    for mtp in (False, True):
        model = load(path, mtp, pad_multiple=4, pool=False)
        if mtp:
            model.keep_rows(())
        [rows] = model.decode([Chunk(0, 0, PROMPT, 2)])
        logits = [row.copy() for row in rows]
        for i in range(5):
            [rows] = model.decode([Chunk(0, len(PROMPT) + 3 * i, [7 + i, 8, 9], 3)])
            logits += [row.copy() for row in rows]
        found.append(np.array(logits))
        model.close()
    assert np.array_equal(*found)


def test_a_head_without_its_target_is_no_model(tmp_path: Path) -> None:
    for path in (
        write_mtp(tmp_path / "mtp.gguf", "qwen35", is_alone=True),
        write_eagle3(tmp_path / "eagle3.gguf"),
        write_dflash(tmp_path / "dflash.gguf"),
        write_dflash(tmp_path / "dspark.gguf", has_markov=True),
    ):
        head = check_draft(path).head
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


def load_own(model: Any) -> HeadDraft:
    return HeadDraft(model.open_head(), model)


def written(
    path: Path, load_draft: Any, numerics: Numerics, users: int
) -> tuple[list[list[int]], int]:
    """Return what users write in an engine with a head or without, and how much was accepted."""
    host = EngineHost(
        lambda: load(path, load_draft is load_own, pad_multiple=4, pool=False),
        HostOptions(numerics=numerics, first_quiet_seconds=1e9, room_seconds=60.0),
        load_draft=load_draft,
    )
    loaded = host.start().result()
    guess = guesser(loaded.model, opening(), 1, 0.0) if load_draft else None
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
    plain, none = written(path, None, numerics, users)
    drafted, accepted = written(path, load_own, numerics, users)
    assert drafted == plain and none == 0
    assert accepted > 15 * users
