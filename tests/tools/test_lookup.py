"""`outrider lookup create`, `merge` and `stats` with a model's own vocabulary."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.drafters.ngram_cache import unpack
from outrider.drafters.ngram_file import load_cache
from outrider.engine import llama_loading
from outrider_cli import run
from tests.support.repeating import counted
from tests.support.tiny_gguf import write_model

TEXT = "def read(path): return open(path).read()\n" * 40

Lookup = Callable[..., Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def lookup(capsys: pytest.CaptureFixture[str]) -> Lookup:
    """Run a command and return its JSON object."""

    def ask(*words: object) -> Any:
        assert run(["lookup", *map(str, words), "--json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return ask


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Lookup:
    """Run a command that is refused, and return the one line that it says."""

    def ask(*words: object) -> str:
        assert run(["lookup", *map(str, words)]) == 1
        said = capsys.readouterr()
        assert not said.out and said.err.count("\n") == 1
        return said.err

    return ask


def test_a_static_cache_counts_pairs_of_tokens_of_the_text(
    model: Path, text: Path, tmp_path: Path, lookup: Lookup
) -> None:
    place = tmp_path / "static.bin"
    made = lookup("create", "-m", model, "-f", text, "-lcs", place)
    token_ids = llama_loading.tokenize(model, TEXT.removesuffix("\n").encode()).token_ids
    found = {unpack(ngram): dict(counts) for ngram, counts in load_cache(place).items()}
    assert found == counted(token_ids, (2,))
    assert made["n_input"] == len(token_ids) and made["n_ngrams"] == len(found)


def test_merged_caches_add_up(model: Path, text: Path, tmp_path: Path, lookup: Lookup) -> None:
    one, all_of_them = tmp_path / "one.bin", tmp_path / "all.bin"
    lookup("create", "--model", model, "--file", text, "--lookup-cache-static", one)
    made = lookup("merge", one, one, one, all_of_them)
    merged, single = (dict(load_cache(each).items()) for each in (all_of_them, one))
    assert made["n_ngrams"] == len(single) == len(merged)
    for ngram, counts in single.items():
        assert merged[ngram] == {token: 3 * count for token, count in counts.items()}


def test_stats_tell_what_caches_draft_of_a_text(
    model: Path, text: Path, tmp_path: Path, lookup: Lookup
) -> None:
    options = ("stats", "--model", model, "--file", text, "--ctx", 200, "--n-draft", 5)
    alone = lookup(*options)
    assert (alone["n_ctx"], alone["n_draft"]) == (256, 5), "as llama.cpp rounds a context up"
    assert alone["n_accept"] > 0.8 * alone["n_drafted"] > 0
    static = tmp_path / "static.bin"
    lookup("create", "--model", model, "--file", text, "-lcs", static)
    assert lookup(*options, "-lcs", static)["n_accept"] > alone["n_accept"]


def test_a_dynamic_cache_that_is_missing_is_made_and_one_that_is_there_stays(
    model: Path, text: Path, tmp_path: Path, lookup: Lookup
) -> None:
    place = tmp_path / "dynamic.bin"
    options = ("stats", "-m", model, "-f", text, "-c", 256, "-lcd", place)
    first = lookup(*options)
    made = place.read_bytes()
    assert len(load_cache(place)) > 50
    assert lookup(*options)["n_accept"] > first["n_accept"]
    assert place.read_bytes() == made


def test_the_text_is_tokenized_as_it_is_without_escapes(
    model: Path, tmp_path: Path, lookup: Lookup
) -> None:
    place = tmp_path / "static.bin"
    asked = ("create", "-m", model, "-lcs", place, "-p", r"a\nb")
    assert lookup(*asked)["n_input"] < lookup(*asked, "--no-escape")["n_input"]


def test_only_the_vocabulary_is_loaded(
    model: Path, text: Path, lookup: Lookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    load = llama_loading.ll.llama_model_load_from_file

    def note(path: bytes, params: Any) -> Any:
        loaded.append(params.vocab_only)
        return load(path, params)

    monkeypatch.setattr(llama_loading.ll, "llama_model_load_from_file", note)
    lookup("stats", "-m", model, "-f", text)
    assert loaded == [True]


def test_what_cannot_be_read_is_one_line_that_names_it(
    model: Path, text: Path, tmp_path: Path, refused: Lookup
) -> None:
    none, bad = tmp_path / "none.bin", tmp_path / "bad.bin"
    bad.write_bytes(struct.pack("<9i", 1, 2, -1, -1, 2, 5, 1, 6, 0))
    stats = ("stats", "--model", model, "--file", text)
    assert f"lookup-cache-static: there is no file {none}" in refused(*stats, "-lcs", none)
    for option in ("lookup-cache-static", "lookup-cache-dynamic"):
        said = refused(*stats, f"--{option}", bad)
        assert said.startswith(f"outrider: {option}: {bad} is damaged")
        assert said.endswith("byte 32: a count of 0\n")
    assert "byte 32" in refused("merge", bad, none)
    assert "there is no file" in refused("merge", none, bad)
    assert "cannot read" in refused("stats", "--model", model, "--file", none)
    assert f"model: cannot read {none}" in refused("stats", "--model", none, "--file", text)
    assert "n_draft: must be at least 0" in refused(*stats, "--n-draft", -1)
    assert "ctx: must be in [0, " in refused(*stats, "--ctx", -1)
    nowhere = tmp_path / "no" / "place.bin"
    assert "lookup-cache-static: cannot write" in refused(
        "create", "--model", model, "--file", text, "-lcs", nowhere
    )


def test_a_cache_of_another_vocabulary_is_refused(
    model: Path, text: Path, tmp_path: Path, refused: Lookup
) -> None:
    other = tmp_path / "other.bin"
    other.write_bytes(struct.pack("<7i", 1, 2, -1, -1, 1, 50_000, 3))
    said = refused("stats", "-m", model, "-f", text, "-lcs", other)
    assert "byte 20: token 50000; the vocabulary has 320 tokens" in said


def test_what_is_no_command_line_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (("merge", "one.bin"), "merge needs a cache to read and a place to save"),
        (("stats", "-m", "m", "-f", "f", "-p", "p"), "--file and --prompt exclude each other"),
        (("stats", "-f", "f"), "--model"),
        (("create", "-m", "m", "-f", "f"), "--lookup-cache-static"),
    ):
        assert run(["lookup", *words]) == 2
        assert said in capsys.readouterr().err


def test_a_text_shorter_than_a_piece_and_ties_are_said(
    model: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lookup", "stats", "-m", str(model), "-p", "a"]) == 0
    said = capsys.readouterr()
    assert "n_drafted    = 0" in said.out
    assert "note: nothing was drafted: " in said.err
    mixed = " ".join(f"{i * 7 % 11} {i * i % 13}" for i in range(600))
    assert run(["lookup", "stats", "-m", str(model), "-p", mixed, "-c", "256"]) == 0
    assert "of the drafted tokens had an equal" in capsys.readouterr().err
