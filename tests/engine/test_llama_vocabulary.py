"""Tokenizing with llama.cpp: whatever the text, the process lives."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.errors import Draining, EngineBusy
from tests.support.thorough import THOROUGH
from tests.support.tiny_gguf import Vocabulary, write_model

# `bloom` matches across letters, digits and punctuation, `exaone-moe` across words.
BY_REGEX = ("gpt-4o", "deepseek-v3", "deepseek-llm", "bloom", "exaone-moe")
if THOROUGH:
    BY_REGEX += ("tekken", "deepseek-coder", "tiny_aya", "superbpe", "whitespace", "default")
UNITS = ("a", "aA", "1", "!", " ", "\r\n", "é", "中", "a ", "a1!", "\u3000 ")

TOKENIZE = f"""
import ctypes, sys
import llama_cpp as ll
from outrider.engine.llama_vocabulary import Vocabulary
ll.llama_backend_init()
params = ll.llama_model_default_params()
params.vocab_only = True
vocabulary = Vocabulary(ll.llama_model_load_from_file(sys.argv[1].encode(), params))
texts = vocabulary.texts()
for unit in {UNITS!r}:
    text = (unit * 200_000)[:int(sys.argv[2])].encode()
    ids = vocabulary.tokenize(text, False, False)
    assert b"".join(texts[i] for i in ids) == text or len(sys.argv) > 3, unit
"""


@pytest.mark.fault(
    "crash",
    "a prompt of 30,000 letters without a space",
    before="with many tokenizers (gpt-4o, tekken, deepseek ...) the target overflowed its stack",
    now="each text has a stack of its own, as large as its length may need",
)
@pytest.mark.parametrize("pre_tokenizer", BY_REGEX)
def test_an_unbroken_run_of_any_length_is_tokenized(tmp_path: Path, pre_tokenizer: str) -> None:
    vocabulary = Vocabulary(pre_tokenizer=pre_tokenizer)
    path = write_model(tmp_path / "m.gguf", vocabulary=vocabulary)
    unmapped = ["bytes are dropped"] if pre_tokenizer == "whitespace" else []
    command = [sys.executable, "-c", TOKENIZE, str(path), "100000", *unmapped]
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture
def model(tmp_path: Path) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(
            path=write_model(tmp_path / "m.gguf"),
            context=64,
            sequence_count=1,
            thread_count=1,
            pad_multiple=1,
        )
    )


def test_a_text_that_no_stack_is_found_for_is_refused(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.engine.llama_vocabulary._STACK_BYTES_PER_LETTER", 1 << 40)
    with pytest.raises(EngineBusy, match="no memory for a stack of"):
        model.tokenize(b"the rain in spain", False, False)
    monkeypatch.undo()
    assert model.tokenize(b"the rain in spain", False, False)
    model.close()


def test_nothing_is_tokenized_in_a_model_that_is_closed(model: LlamaModel) -> None:
    text = b"the rain in spain " * 20_000
    outcomes: list[object] = []

    def tokenize() -> None:
        while True:
            try:
                outcomes.append(len(model.tokenize(text, False, False)))
            except Draining as error:
                outcomes.append(error)
                return

    threads = [threading.Thread(target=tokenize) for _ in range(3)]
    for thread in threads:
        thread.start()
    while not outcomes:
        threads[0].join(0.01)
    model.close()
    for thread in threads:
        thread.join(60)
    assert sum(isinstance(each, Draining) for each in outcomes) == 3
    assert len({each for each in outcomes if isinstance(each, int)}) == 1
