"""A tiny model of each kind of architecture: what runs, and with which limits: docs/models.md.

With `REWRITE_MODELS=1` the page is written anew.
"""

from __future__ import annotations

import ctypes
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter

from outrider.engine.llama import LlamaModel
from outrider.engine.llama_library import init_backend, ll
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, ModelDescription, Rollback
from tests.support import tiny_gguf
from tests.support.tiny_architectures import (
    ARCHITECTURES,
    PLAIN,
    RECURRENT,
    write_architecture,
)
from tests.support.tiny_gguf import Shape, write_model

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
TOLERANCE = 0.2
"""Of a logit; their standard deviation is 3. What docs/models.md says of rejections, with room."""

WEIGHTS = [
    *("BF16", "Q5_0", "Q5_1", "Q4_0", "Q4_1", "Q2_K", "Q3_K_M", "Q4_K_S", "Q4_K_M", "Q5_K_M"),
    *("Q6_K", "IQ4_NL", "IQ4_XS", "TQ2_0"),
]
"""Those that `llama_model_quantize` makes without a table of what matters."""

START = """# Models

What runs, by architecture: a tiny model of each, with random weights, is loaded and rolled back by `tests/engine/test_zoo.py`,
which writes this page; `tests/services/test_rollback_kinds.py` compares texts with and without drafts for each kind of memory. How a session comes to hold less is found out
at load by trying, said by `GetModel` (`rollback_capability`), and decides what a rejected draft costs:

| rollback | what it is | a rejected draft costs |
|---|---|---|
| full | attention over everything: sessions are cut to any length | nothing |
| window | a sliding window with a cache of its own, which is small (`--swa-full`: as large as the others, and then rollback is full) | nothing; far back, beyond the window's cells, a session starts from its newest checkpoint |
| snapshots | a recurrent state of which llama.cpp keeps the last few (`--snapshots N`, 4 by default) | nothing up to N tokens; more go back to a checkpoint |
| checkpoints | a recurrent state that cannot be cut | a copy of the state before each draft; afterwards the accepted tokens are decoded again, with the next round's |

Checkpoints: at most 4 for each session and 1 GiB together, but for the newest of each session in use; one is made where a session goes idle, and kept while there is room. `exact` numerics, trees of draft tokens, runner-up lines and one
pool of cells need full rollback. A recurrent session's cache is given to another only whole or from a checkpoint.

What a rejection changes of the logits (standard deviation 3), against a fresh context that reads the same text: nothing, bit for bit, for one session alone and wherever `exact` runs (`tests/engine/test_memories.py`). Where several
sessions share decodes, 250 random rounds of three differed on one x86 CPU at most by 0 (deepseek2, gpt2, phi3, qwen3, qwen3moe, qwen35, mamba, mamba2, rwkv7), .05 (gemma2, gemma3, qwen2, qwen2moe), .14 (falcon-h1, granite-hybrid,
mixtral); gpt-oss, by 0 there, differed by .23 in 60 rounds with evictions and restarts; without a rejection kernels of other shapes do the same. The tests allow .3.

Greedy texts of mixtures under `native` may hold tokens that a fresh context without flash attention puts .3 to 2 standard deviations of the logits below its best: those of llama-server hold as many, also of one user alone. Flash attention, with which
llama.cpp and `native` start, rounds otherwise, and where two experts are nearly tied for a router's last place, the other one is taken. Texts with such a token (one x86 CPU without AMX; qwen3moe, gpt-oss and
deepseek2 with random weights in Q8_0, 8 users on 4 sequences, 80 tokens each; every token compared with a fresh context that reads one token a decode):

| of 72 texts | Outrider | Outrider, drafts | llama-server `-np 4` | llama-server `-np 1` |
|---|---|---|---|---|
| flash attention off | 0 | 0 | 0 | 0 |
| on | 15 | 14 | 14 | 15 |
| on, routers that choose clearly | 0 | 0 | 0 | 0 |

In llama.cpp alone, one row a decode, flash attention changed 285 of 19,200 choices, where the two experts were .02 apart (median; usual is .5). It put 16 of 5,760 tokens more than .3 below the best, at most .81; with those choices put back none, at most .25. Four sequences
together did the same. Without flash attention the number of rows seldom changes a choice. Of 144 other texts 27 had such a token in Outrider, 26 in llama-server and 25 in it with one slot; 4 in both with routers that choose clearly, and without flash attention one (.73), `exact` included. So it is with AMX's kernels (qwen3moe and gpt-oss, the
tiles computed in software): no choice by rows, 186 by flash attention. A router with larger weights is no help, as the rounding that it sees grows, too.

A window's small cache: 64 sessions of 448 tokens on the tiny models, whose window is 24, take 82.6 MB in place of 88.0 with `--swa-full` (gemma2), 84.8 in place of 96.3 (gemma3), 82.9 in place of 88.3 (gpt-oss), weights and everything else included.
Over four windows of text, a rejection costs no decode more in either (counted by `tests/engine/test_rollback.py`).

Weights of every common type run, from F32 to IQ4_XS and TQ2_0, and so does a model in several files.

| architecture | example | rollback | pool, trees | `exact` may run |
|---|---|---|---|---|
"""  # noqa: E501


END = """
## AMX, by architecture

The 153 architectures that llama.cpp's `test-llama-archs` goes through, as tiny files of random weights in Q8_0 and Q4_0, most of them in two shapes (recurrent ones with 32 heads of their state, so that their matrices are
whole tiles; latent attention with 8 heads and one for keys); AMX's tile instructions computed in software. Logits with AMX against those of the AVX-512 kernels, 1, 5 and 33 rows of 1 and 4 sessions, in the mean over a row
divided by its standard deviation: of those that are right at most 2e-7 in Q4_0 (glm5-next .007); in Q8_0 a median of .006 for an architecture's worst row, at most .055, and .39 for gemma4, whose SSE4.2 kernels differ from the AVX-512 ones as much.

| computed | architectures |
|---|---|
| right with AMX (106) | afmoe, apertus, arcee, arctic, baichuan, bailingmoe, bailingmoe2, bitnet, bloom, chatglm, codeshell, cohere2, cohere2moe, command-r, dbrx, deci, deepseek, deepseek2-ocr, dots1, ernie4_5, ernie4_5-moe, exaone, exaone-moe, exaone4, falcon, falcon-h1, gemma, gemma2, gemma3, gemma3n, gemma4, glm4, glm4moe, glm5-next, gpt-oss, gpt2, gptneox, granite, granite_swa, granitehybrid, granitemoe, grok, grovemoe, hrm_text, hunyuan-dense, hunyuan-moe, hunyuan_vl, hy_v3, internlm2, jais, jais2, laguna, llama, llama4, maincoder, mamba2, maple, mellum, mimo2, minicpm, minicpm3, minimax-m2, minimax-m3, mistral3, mpt, muse-glimmer, nanbeige, nemotron, nemotron_h, nemotron_h_moe, olmo, olmo2, olmoe, openelm, orion, paddleocr, pangu-embedded, phi2, phi3, phimoe, plamo, plamo3, plm, pockettts, qwen, qwen2, qwen2moe, qwen2vl, qwen3, qwen3moe, qwen3tts, qwen3vl, qwen3vlmoe, refact, rwkv6, rwkv7, seed_oss, smallthinker, smollm3, spark2_5, stablelm, starcoder, starcoder2, step35, talkie, xverse |
| without it: AMX aborts (latent attention: weights of three dimensions) | bailingmoe3, deepseek2, deepseek32, deepseek4, dots3note, glm-dsa, hy_v4, kimi-k3, kimi-linear, mistral4 |
| without it: AMX is wrong with several sessions, or crashes (recurrent) | jamba, lfm2, lfm2moe, mamba, minimax-01, qwen35, qwen35moe, qwen3next |
| not right in llama.cpp with any kernels | arwkv7 and plamo2 with several sessions, chameleon, cogvlm where fewer logits are asked for than rows; minimax-01 in Q4_0 aborts with several sessions |
| not tried: no file that runs could be made | dflash, eagle3, gemma4-assistant, gptj, graniteswitch, qwen4exp, rwkv6qwen2 |
| not for text from left to right; refused where the file says so | bert, clip, dream, eurobert, gemma-embedding, jina-bert-v2, jina-bert-v3, llada, llada-moe, llama-embed, modern-bert, neo-bert, nomic-bert, nomic-bert-moe, rnd1, t5, t5encoder, wavtokenizer-dec |

It is the file that counts, and each is tried: with AMX a matrix whose rows are one block (32 weights in Q8_0 or Q4_0) is wrong in decodes of 32 rows and more, for llama.cpp adds
to what it never set (rwkv7 with low-rank matrices of 32 quantised, as in the table above; with 64 it is right),
and rwkv6 is wrong where its low-rank matrices are not F32, which llama.cpp's quantiser leaves them. The trial
compares the rows of several sessions with those of one, too: of 616 such files it took AMX for none that is wrong but two whose random weights hardly look at their state (jamba and mamba in Q4_0), and refused it to none that is right.
"""  # noqa: E501


def load(path: Path, full_window: bool = False) -> LlamaModel:
    return LlamaModel(
        LlamaConfig(
            path=path,
            context=128,
            sequence_count=2,
            thread_count=1,
            pad_multiple=1,
            batch_rows=64,
            full_window=full_window,
        )
    )


def row_of(name: str, architecture: str, small: ModelDescription, full: ModelDescription) -> str:
    pool = "yes" if any(each.is_pool for each in small.layouts) else "no"
    exact = "yes" if small.rollback is Rollback.FULL else "no"
    if exact == "no" and full.rollback is Rollback.FULL:
        exact = "with a full window, which it implies"
    return f"| {architecture} | {name} | {small.rollback.value} | {pool} | {exact} |\n"


def check_rejection(model: LlamaModel, name: str) -> None:
    """Reject drafts in the middle of a text, and read it at once: the logits agree."""
    text = [3 + 7 * i % 290 for i in range(40)]
    model.decode([Chunk(0, 0, text[:20], 1)])
    held = 20
    for end in range(22, 41, 2):
        model.decode([Chunk(0, held, [*text[held:end], 5, 6, 7], 4)])
        held = model.truncate(0, end)
        assert held >= 20, name
    last = model.decode([Chunk(0, held, [*text[held:], 9], 1)])[0][0].copy()
    model.truncate(0, 0)
    [[expected]] = model.decode([Chunk(0, 0, [*text, 9], 1)])
    assert np.abs(last - expected).max() < TOLERANCE, name


def check_repeated_cells(model: LlamaModel, name: str) -> None:
    """Repeat cells where that can be done; afterwards the logits are those of before."""
    text = [3 + 7 * i % 290 for i in range(20)]
    expected = model.decode([Chunk(0, 0, text, 1)])[0][0].copy()
    held = model.repeat_cells(0, 100)
    assert held == 20 or (held == 100 and model.describe().rollback is Rollback.FULL), name
    assert np.isfinite(model.decode([Chunk(0, held, text, 1)])).all(), name
    model.truncate(0, 0)
    np.testing.assert_array_equal(model.decode([Chunk(0, 0, text, 1)])[0][0], expected, name)
    model.truncate(0, 0)


def test_every_kind_of_model_runs_and_the_page_says_with_which_limits(tmp_path: Path) -> None:
    known = PLAIN | ARCHITECTURES | RECURRENT
    rows = []
    for name, (architecture, *_) in sorted(known.items()):
        path = write_architecture(tmp_path / f"{name}.gguf", name)
        model = load(path)
        check_repeated_cells(model, name)
        check_rejection(model, name)
        small = model.describe()
        model.close()
        full = load(path, full_window=True)
        check_repeated_cells(full, name)
        rows.append(row_of(name, architecture, small, full.describe()))
        full.close()
    page = START + "".join(rows) + END
    if os.environ.get("REWRITE_MODELS"):
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page, "REWRITE_MODELS=1 writes it anew"


@pytest.mark.parametrize("weights", ["F32", "F16", "Q8_0"])
def test_every_type_of_weights_that_the_writer_has_runs(tmp_path: Path, weights: str) -> None:
    path = write_model(tmp_path / "m.gguf", weight_type=GGMLQuantizationType[weights])
    model = load(path)
    check_rejection(model, weights)
    model.close()


@pytest.fixture(scope="module")
def unquantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in F32 whose widths are whole blocks of every type."""
    shape = Shape(embedding=256, layers=2, heads=4, feed_forward=256)
    path = tmp_path_factory.mktemp("zoo") / "f32.gguf"
    return write_model(path, shape=shape, weight_type=GGMLQuantizationType.F32)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_every_common_type_of_weights_runs(tmp_path: Path, unquantised: Path, weights: str) -> None:
    path = tmp_path / f"{weights}.gguf"
    options = ll.llama_model_quantize_default_params()
    options.nthread = 1
    options.ftype = getattr(ll, f"LLAMA_FTYPE_MOSTLY_{weights}")
    init_backend()
    code = ll.llama_model_quantize(bytes(unquantised), bytes(path), ctypes.byref(options))
    assert code == 0, weights
    model = load(path)
    check_rejection(model, weights)
    assert model.describe().file_type.startswith(weights.split("_", maxsplit=1)[0]), (
        model.describe().file_type
    )
    model.close()


def test_a_model_in_several_files_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts = partial(GGUFWriter, split_max_tensors=12)
    monkeypatch.setattr(tiny_gguf, "GGUFWriter", in_parts)
    write_model(tmp_path / "m.gguf")
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) > 2
    model = load(parts[0])
    check_rejection(model, "shards")
    model.close()
