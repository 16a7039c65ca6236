"""vLLM's interface for custom proposers, as it was read, and that ours has it.

Read in vllm-project/vllm: `create_custom_proposer` at commit f7490e784, and the call in
`GPUModelRunner.propose_draft_token_ids`, as in the releases 0.22.1 to 0.29.0. Before 0.22 there is
none. vLLM calls it experimental: a release may change it, and then this table changes.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from outrider.errors import InvalidConfig
from outrider_vllm import ADDRESS, TLS_CA, TLS_CERT, TLS_KEY, WAIT, DraftProposer, Settings

VERSION = "0.29.0"
METHOD = "custom_class"
CLASS = "outrider_vllm.DraftProposer"
CONSTRUCTED_WITH = ("vllm_config",)
PROPOSE = {  # name: whether it has a default
    "sampled_token_ids": False,
    "num_tokens_no_spec": False,
    "token_ids_cpu": False,
    "slot_mappings": True,
}
OPTIONAL = ("load_model", "dummy_run")  # called if they are there, with arguments of vLLM's own
READ_OF_THE_CONFIG = (
    "speculative_config.num_speculative_tokens",
    "model_config.max_model_len",
    "model_config.get_vocab_size",
    "scheduler_config.max_num_seqs",
)


def vllm_config(**changes: Any) -> Any:
    """Return what our proposer reads of a VllmConfig, and nothing else."""
    values = {"tokens": 4, "most": 64, "vocabulary": 64, "sequences": 4} | changes
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=values["tokens"]),
        model_config=SimpleNamespace(
            max_model_len=values["most"], get_vocab_size=lambda: values["vocabulary"]
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=values["sequences"]),
    )


def test_vllm_finds_the_class_by_its_path_as_it_looks_for_it() -> None:
    module, _, name = CLASS.rpartition(".")
    assert getattr(importlib.import_module(module), name) is DraftProposer


def test_it_is_made_and_called_as_vllm_does() -> None:
    made = inspect.signature(DraftProposer).parameters
    assert tuple(made) == CONSTRUCTED_WITH
    called = list(inspect.signature(DraftProposer.propose).parameters.values())[1:]
    assert {each.name: each.default is not each.empty for each in called} == PROPOSE
    assert all(each.kind is each.POSITIONAL_OR_KEYWORD for each in called)
    for name in OPTIONAL:
        inspect.signature(getattr(DraftProposer, name)).bind(None, 1, 2, any_option=3)


def test_it_reads_of_the_config_what_every_release_has() -> None:
    source = inspect.getsource(DraftProposer.__init__)
    read = set(re.findall(r"vllm_config\.(\w+\.\w+)", source))
    assert read == set(READ_OF_THE_CONFIG)


def test_vllm_is_not_imported() -> None:
    code = "import sys, outrider_vllm; print('vllm' in sys.modules or 'torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert said.stdout.strip() == b"False"


def test_the_documents_show_the_options_of_this_release() -> None:
    page = Path(__file__).parents[2] / "docs" / "other-engines.md"
    text = page.read_text(encoding="utf-8")
    assert VERSION in text
    [shown] = re.findall(r"--speculative-config\s*\\?\s*'(\{.*?\})'", text, re.DOTALL)
    options = json.loads(shown)
    assert (options["method"], options["model"]) == (METHOD, CLASS)
    assert options.keys() == {"method", "model", "num_speculative_tokens"}


@pytest.fixture(name="proposer")
def _proposer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A proposer whose draft is not there."""
    monkeypatch.setenv(ADDRESS, "127.0.0.1:1")
    made = DraftProposer(vllm_config())
    yield made
    made.close()


def test_without_a_draft_it_proposes_nothing_for_each_request(proposer: DraftProposer) -> None:
    texts = np.zeros((4, 64), np.int32)
    counts = np.array([3, 2, 0, 0], np.int32)
    assert proposer.propose([[5], []], counts, texts) == [[], []]
    assert proposer.propose([], counts, texts, slot_mappings=None) == []


@pytest.mark.parametrize(
    "wrong",
    [
        (None, None, None),
        ([[1]], None, None),
        ([[1]], np.array([3]), None),
        ([[1]], np.array([]), np.zeros((4, 64))),
        ([[1], [2]], np.array([3, 4]), np.zeros((1, 64))),
        ([1, 2], np.array([3, 4]), np.zeros((2, 64))),
        ("text", {}, object()),
    ],
)
def test_nothing_that_it_is_given_raises(
    proposer: DraftProposer, wrong: tuple[Any, Any, Any]
) -> None:
    proposer._drafting.is_ready = True  # so that it looks at what it is given
    answer = proposer.propose(*wrong)
    assert all(each == [] for each in answer)


def test_what_the_loop_raises_stays_there(
    proposer: DraftProposer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("anything")

    monkeypatch.setattr(proposer, "_propose", fail)
    assert proposer.propose([[1], [2]], None, None) == [[], []]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {ADDRESS: "nowhere"},
        {ADDRESS: "a:1", WAIT: "soon"},
        {ADDRESS: "a:1", WAIT: "-1"},
        {ADDRESS: "a:1", TLS_CA: "ca.pem", TLS_CERT: "its.pem"},
        {ADDRESS: "a:1", TLS_CERT: "its.pem", TLS_KEY: "its.key"},
    ],
)
def test_an_environment_that_names_no_draft_is_refused_at_the_start(
    environment: dict[str, str],
) -> None:
    with pytest.raises(InvalidConfig):
        Settings.read(environment)
