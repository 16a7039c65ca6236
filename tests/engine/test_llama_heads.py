"""The functions of llama.cpp that heads need: found under their C++ names, or missed in words."""

from __future__ import annotations

import pytest

from outrider.engine.llama_heads import head_functions, mangled, missing_functions
from outrider.speculation import HeadKind

EXPORTED = {
    "llama_set_embeddings_nextn": "_Z26llama_set_embeddings_nextnP13llama_contextbb",
    "llama_set_nextn_layer_offset": "_Z28llama_set_nextn_layer_offsetP13llama_contexti",
    "llama_get_embeddings_nextn": "_Z26llama_get_embeddings_nextnP13llama_context",
    "llama_set_embeddings_layer_inp": "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
    "llama_get_embeddings_layer_inp": "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
}
"""As `nm` lists them."""


def test_each_has_the_name_that_a_compiler_gives_it() -> None:
    assert {name: mangled(name) for name in EXPORTED} == EXPORTED


def test_the_pinned_llama_cpp_has_them_all_and_runs_every_kind() -> None:
    assert set(head_functions()) == set(EXPORTED)
    assert not any(map(missing_functions, HeadKind))


def test_a_head_whose_function_is_missing_is_off_with_a_sentence() -> None:
    names = set(head_functions()) - {"llama_get_embeddings_layer_inp"}
    assert missing_functions(HeadKind.EAGLE3, names) == (
        "this llama.cpp cannot run an EAGLE-3 head: it has no llama_get_embeddings_layer_inp"
    )
    assert not missing_functions(HeadKind.MTP, names)


@pytest.mark.parametrize("kind", HeadKind)
def test_without_any_of_them_no_kind_runs(kind: HeadKind) -> None:
    assert missing_functions(kind, ())
