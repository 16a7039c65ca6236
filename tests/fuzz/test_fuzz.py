"""Whatever is kept of random inputs, and some more, is read or refused, and makes no fault."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from gateway.routes import describe
from outrider.engine import gguf_check
from tests.fuzz import corpus, subjects
from tests.fuzz.cases import ANSWERS, Case, methods, parse, write
from tests.fuzz.corpus import FOLDER, keep, read_corpus
from tests.fuzz.mutate import mutate_bytes, mutate_json
from tests.fuzz.run import SUBJECTS, Reached, fuzz, outcome
from tests.fuzz.services import Answers
from tests.fuzz.subjects import SECONDS

MUTATED = {"gguf": 600, "lookup": 600, "bodies": 250, "calls": 100, "answers": 40}
MOST_BYTES = 600_000
OF_A_TARGET = (
    *("Score-without-the-token", "Score-too-few", "Score-strange-id", "Tokenize-none"),
    *("Tokenize-strange-id", "Embed-nan", "Embed-inf", "Grammar-none"),
)


@pytest.fixture(autouse=True)
def _retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.backoff.LONGEST_PAUSE", 0.1)


@pytest.mark.parametrize("name", SUBJECTS)
async def test_what_is_kept_makes_no_fault(name: str) -> None:
    kept = read_corpus(name)
    said: dict[str, Any] = {}
    async with SUBJECTS[name]() as subject:
        for file, data in kept.items():
            said[file] = await outcome(subject, data)
        if hasattr(subject, "check"):
            await subject.check()
    faults = {file: fault for file, (_, fault) in said.items() if fault is not None}
    assert not faults
    assert len({word for word, _ in said.values()}) > 1, "some are read, and some refused"


@pytest.mark.parametrize("name", SUBJECTS)
async def test_what_is_changed_at_random_makes_no_fault(name: str) -> None:
    faults: list[tuple[bytes, Exception]] = []
    words: set[str] = set()

    def note(data: bytes, word: str, fault: Exception | None) -> bool:
        words.add(word)
        faults.extend([(data, fault)] if fault is not None else [])
        return False

    async with SUBJECTS[name]() as subject:
        inputs = list(read_corpus(name).values())
        await fuzz(subject, inputs, 1, lambda number: number >= MUTATED[name], note)
        if hasattr(subject, "check"):
            await subject.check()
    assert not faults
    assert len(words) > 1


@pytest.mark.fault(
    "crash",
    "A target answers with log probabilities without the prompt's token, tokens that are none, "
    "an embedding of NaN, or no grammar for a schema",
    before="a bug was logged, the caller was blamed (INVALID_ARGUMENT), or got NaN, or a text "
    "without the schema",
    now="another target is asked, or the same one again; DECODE_FAILED, which says that the answer "
    "cannot be read, where that helps nothing",
)
@pytest.mark.parametrize("repeats", [True, False])
async def test_what_a_target_answers_is_never_the_callers_fault(
    repeats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fuzz.services.ScriptedTarget.repeats", repeats)
    kept = read_corpus("answers")
    subject = Answers()
    subject.seconds = SECONDS
    async with subject:
        said = {name: await outcome(subject, kept[f"fault-{name}"]) for name in OF_A_TARGET}
    expected = dict.fromkeys(OF_A_TARGET, ("INTERNAL" if repeats else "OK", None))
    if not repeats:
        expected["Grammar-none"] = "INVALID_ARGUMENT", None  # a toy compiles none
    assert said == expected


def test_every_method_and_every_route_has_inputs() -> None:
    called = {parse(data).name for data in read_corpus("calls").values()}
    assert called == set(methods())
    answered = {parse(data).path for data in read_corpus("answers").values()}
    assert answered <= set(methods()) and len(answered) >= 11
    heads = {data.partition(b"\n")[0].decode() for data in read_corpus("bodies").values()}
    routes = {
        f"{method.upper()} {path}"
        for path, kinds in describe()["paths"].items()
        for method in kinds
        if method == "post"
    }
    assert routes <= heads


def test_the_corpus_is_small_and_nothing_else_is_in_it() -> None:
    sizes = {path: path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < MOST_BYTES
    assert {path.parent.name for path in sizes} == set(SUBJECTS)


@pytest.mark.parametrize("name", ["calls", "answers"])
def test_messages_are_written_as_they_are_read(name: str) -> None:
    rng = random.Random(4)
    for data in read_corpus(name).values():
        case = parse(data)
        assert parse(write(case)) == case
        mutated = case.mutated(rng)
        assert parse(write(mutated)) == mutated
    strange = Case(f"{ANSWERS}outrider.v1.TargetService/Verify", [b"", b"\xff\xff", b"\x08\x01"])
    assert write(strange).decode().splitlines()[1:] == ["hex", "hex ffff", "round: 1"]
    assert parse(write(strange)) == strange


def test_a_seed_makes_the_same_inputs_again() -> None:
    data = b'{"prompt": ["a", 1], "stream": false}'
    for mutate in (mutate_bytes, mutate_json):
        first, second = (
            [mutate(data, [b"{}"], rng) for _ in range(300)]
            for rng in (random.Random(3), random.Random(3))
        )
        assert first == second and len(set(first)) > 150


async def test_a_reader_that_fails_is_found_and_its_input_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Path) -> None:
        if path.read_bytes().count(b"GGUF") > 1:
            raise ZeroDivisionError("twice")

    monkeypatch.setattr(subjects, "check_gguf", failing)
    found: list[bytes] = []

    def note(data: bytes, word: str, fault: Exception | None) -> bool:
        if isinstance(fault, ZeroDivisionError):
            found.append(data)
        return False

    async with SUBJECTS["gguf"]() as subject:
        await fuzz(subject, [b"GGUF\x03"], 1, lambda number: number >= 500 or bool(found), note)
    assert found
    path = keep("gguf", found[0], corpus.FAULT, tmp_path)
    assert path is not None and read_corpus("gguf", tmp_path) == {path.name: found[0]}
    assert keep("gguf", found[0], corpus.FAULT, tmp_path) is None
    assert keep("gguf", bytes(corpus.MOST_BYTES + 1), corpus.FOUND, tmp_path) is None


async def test_a_bug_behind_an_answer_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(subjects.FakeOrchestrator):
        def generate(self, *arguments: Any, **options: Any) -> Any:
            raise ZeroDivisionError("never")

    monkeypatch.setattr(subjects, "FakeOrchestrator", Failing)
    async with SUBJECTS["bodies"]() as subject:
        word, fault = await outcome(subject, b'POST /completion\n{"prompt": "a"}')
    assert word == "FAULT" and "ZeroDivisionError" in str(fault)


def test_lines_that_ran_for_the_first_time_are_new(tmp_path: Path) -> None:
    reached = Reached()
    path = tmp_path / "model"

    def check(data: bytes) -> bool:
        path.write_bytes(data)
        with reached.watching(), pytest.raises(gguf_check.InvalidConfig):
            gguf_check.check_gguf(path)
        return reached.take_new()

    assert check(b"<html>")
    assert not check(b"<html>")
    assert check(b"GGUF\x03\x00\x00\x00" + bytes(16))
