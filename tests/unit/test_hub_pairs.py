"""The table of drafts and heads: what it may say, whom it is found for, how it is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.model_service.config import ModelOptions
from outrider.speculation import MODEL, HeadKind
from outrider_cli import run
from outrider_cli.doctor.command import PlannedModel, _file
from outrider_cli.doctor.suggestion import suggest_draft
from outrider_cli.hub.names import read_name
from outrider_cli.hub.pairs import known_pairs, pair_for, pairs_named
from tests.support.tiny_gguf import write_model

KINDS = {MODEL, *(kind.value for kind in HeadKind)}


@pytest.mark.parametrize("known", known_pairs(), ids=lambda known: f"{known.target} {known.kind}")
def test_a_pair_has_names_on_the_hub_a_source_and_no_figure_without_its_text(known):
    assert read_name("model", known.model)
    assert not known.draft or read_name("draft-model", known.draft)
    assert known.source.startswith("https://") and known.vocabulary in ("equal", "translated")
    assert known.kind in KINDS and (known.draft or known.kind == "mtp")
    said = known.acceptance
    assert said == "not measured" or (said.startswith(".") and " " in said), "which text it was"


def test_no_pair_is_listed_twice():
    listed = [(known.target, known.model, known.draft) for known in known_pairs()]
    assert len(set(listed)) == len(listed) >= 20


@pytest.mark.parametrize("name", ["qwen3-32b", "Qwen3 32B", "hf:unsloth/Qwen3-32B-GGUF:Q4_K_M"])
def test_a_target_is_found_however_it_is_written(name):
    assert [known.target for known in pairs_named(name)] == ["Qwen3-32B"]


def test_a_part_of_a_name_finds_its_family_and_nothing_all():
    assert {known.target for known in pairs_named("gpt-oss")} == {"gpt-oss-20b", "gpt-oss-120b"}
    assert pairs_named("") == known_pairs() and not pairs_named("bert")


def test_a_file_needs_the_architecture_too():
    names = ("DeepSeek R1 Distill Llama 8B", "x.gguf")
    assert pair_for("llama", names) is None
    found = pair_for("deepseek2", ("DeepSeek R1 BF16",))
    assert found is not None and found.target == "DeepSeek-R1"


@pytest.mark.parametrize(
    ("architecture", "name", "target"),
    [
        ("qwen3", "Qwen3 8B", "Qwen3-8B"),
        ("qwen35", "Qwen3.8-27B", "Qwen3.8-27B"),
        ("llama", "Meta Llama 3.1 8B Instruct", "Llama-3.1-8B"),
        ("gemma3", "Gemma 3 27b It", "gemma-3-27b"),
        ("qwen2", "Qwen2.5 Coder 7B Instruct", "Qwen2.5-Coder-7B"),
        ("qwen2", "Qwen2.5 7B Instruct", None),
    ],
)
def test_a_size_is_no_part_of_another_one(architecture, name, target):
    found = pair_for(architecture, (name,))
    assert (found.target if found else None) == target


def test_the_command_shows_what_to_type_and_where_it_is_from(capsys):
    assert run(["pair", "gpt-oss-20b"]) == 0
    shown = capsys.readouterr().out
    assert "gpt-oss-20b: an EAGLE-3 head\n  --model hf:ggml-org/gpt-oss-20b-GGUF\n" in shown
    assert "vocabulary equal, acceptance not measured\n  https://" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_a_head_in_the_targets_file_has_no_option_of_its_own(capsys):
    assert run(["pair", "qwen3.8-27b"]) == 0
    shown = capsys.readouterr().out
    assert "an MTP head in its file" in shown and "--draft-model hf:" not in shown


def test_json_has_the_same_and_nothing_is_an_empty_list(capsys):
    assert run(["pair", "--json", "qwen3-14b"]) == 0
    [known] = json.loads(capsys.readouterr().out)["pairs"]
    assert known["draft"] == "hf:ggml-org/Qwen3-0.6B-GGUF:Q8_0"
    assert run(["pair", "--json", "bert"]) == 0
    assert json.loads(capsys.readouterr().out) == {"pairs": []}


def test_an_unknown_target_is_a_line(capsys):
    assert run(["pair", "bert"]) == 1
    assert "no draft is known for bert" in capsys.readouterr().err


def looked_at(role: str, path: Path):
    return _file(PlannedModel(role, path, ModelOptions()), measure=False)


def test_doctor_names_a_draft_for_a_target_without_one(tmp_path):
    path = write_model(tmp_path / "Llama-3.1-8B-Instruct-Q8_0.gguf")
    target = looked_at("target", path)
    [finding] = suggest_draft([target])
    assert finding.remedy == "try --draft-model hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0"
    assert "a draft model is known for Llama-3.1-8B" in finding.message
    assert not suggest_draft([target, looked_at("draft", path)])
    assert not suggest_draft([looked_at("target", tmp_path / "Llama-3.1-8B.gguf")])
    other = write_model(tmp_path / "other.gguf")
    assert not suggest_draft([looked_at("target", other)])
