"""Which files of a repository a name on Hugging Face means."""

from __future__ import annotations

import pytest

from outrider.errors import InvalidConfig
from outrider_cli.hub.names import HubName, choose, quants, read_name

ORG = "unsloth/Qwen3-8B-GGUF"
FILES = [
    "README.md",
    "mmproj-F16.gguf",
    "Qwen3-8B-F16-00001-of-00002.gguf",
    "Qwen3-8B-F16-00002-of-00002.gguf",
    "Qwen3-8B-Q4_0.gguf",
    "Qwen3-8B-Q4_K_M.gguf",
    "Qwen3-8B-Q8_0.gguf",
    "mtp-Qwen3-8B-Q8_0.gguf",
    "UD/Qwen3-8B-UD-Q2_K_XL.gguf",
]


def chosen(quant: str = "", file: str = "", files: list[str] = FILES) -> list[str]:
    return list(choose(files, HubName(ORG, quant, file)))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"hf:{ORG}", HubName(ORG)),
        (f"hf:{ORG}:Q8_0", HubName(ORG, "Q8_0")),
        (f"hf:{ORG}:UD-Q4_K_XL", HubName(ORG, "UD-Q4_K_XL")),
        (f"hf:{ORG}/UD/x.gguf", HubName(ORG, file="UD/x.gguf")),
        ("models/hf:/x.gguf", None),
        ("large.gguf", None),
    ],
)
def test_a_name_is_a_repository_and_a_quantisation_or_a_file(text, name):
    assert read_name("model", text) == name
    assert name is None or str(name) == text


@pytest.mark.parametrize(
    "text",
    ["hf:", "hf:qwen", "hf:a/b:", "hf:a/b/c.bin", "hf:a/b:Q4 K", "hf:../..", "hf:a/../x.gguf"],
)
def test_what_looks_like_a_name_and_is_none_is_refused_with_the_forms(text):
    with pytest.raises(InvalidConfig, match="hf:ORG/REPO:QUANT"):
        read_name("model", text)


def test_the_quantisation_is_found_whatever_its_case():
    assert chosen("q4_0") == ["Qwen3-8B-Q4_0.gguf"]
    assert chosen("Q2_K_XL") == ["UD/Qwen3-8B-UD-Q2_K_XL.gguf"]


def test_a_quantisation_is_not_found_in_a_longer_one():
    assert chosen("Q4_K") == []
    assert chosen("F16", files=["x-BF16.gguf", "x-F16.gguf"]) == ["x-F16.gguf"]
    assert chosen("Q4_XS", files=["x-IQ4_XS.gguf"]) == []


def test_without_one_it_is_q4_k_m_then_q8_0_then_the_first_model():
    assert chosen() == ["Qwen3-8B-Q4_K_M.gguf"]
    assert chosen(files=[each for each in FILES if "Q4_K_M" not in each]) == ["Qwen3-8B-Q8_0.gguf"]
    assert chosen(files=FILES[:5]) == FILES[2:4]


def test_what_is_kept_is_not_the_usual_one_because_it_is_the_only_one():
    known = ["Qwen3-8B-Q8_0.gguf"]
    assert choose(known, HubName(ORG), usual_alone=True) == ()
    assert choose([*known, "x-Q4_K_M.gguf"], HubName(ORG), usual_alone=True) == ["x-Q4_K_M.gguf"]


def test_a_model_of_several_parts_is_all_of_them_or_nothing():
    assert chosen("F16") == FILES[2:4]
    assert chosen(file=FILES[2]) == FILES[2:4]
    assert chosen("F16", files=FILES[:3]) == []


def test_heads_and_projectors_are_no_models_unless_they_are_named():
    assert chosen("Q8_0") == ["Qwen3-8B-Q8_0.gguf"]
    assert chosen(file="mtp-Qwen3-8B-Q8_0.gguf") == ["mtp-Qwen3-8B-Q8_0.gguf"]
    assert chosen(files=["mmproj-F16.gguf"]) == []


def test_a_repository_of_heads_alone_has_them():
    heads = ["eagle3-x-F16.gguf", "eagle3-x-Q4_K_M.gguf"]
    assert chosen(files=heads) == ["eagle3-x-Q4_K_M.gguf"]
    assert chosen("F16", files=heads) == ["eagle3-x-F16.gguf"]


def test_the_quantisations_that_there_are_come_from_the_names():
    assert quants(FILES) == ["F16", "Q4_0", "Q4_K_M", "Q8_0", "UD-Q2_K_XL"]
