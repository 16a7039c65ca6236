"""llama.cpp's options as tables: which are ours by another name, and what is said of the others.

The tables know no command: a row is for every command that has the option in question.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

SPELLINGS: dict[str, Sequence[str]] = {
    "alias": ("-a",),
    "batch": ("-b", "--batch-size"),
    "cache-type-k": ("-ctk",),
    "cache-type-v": ("-ctv",),
    "ctx": ("-c", "--ctx-size"),
    "draft-cache-type-k": ("-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"),
    "draft-cache-type-v": ("-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"),
    "draft-ctx": ("-cd", "--ctx-size-draft"),
    "draft-model": ("-md", "--model-draft", "--spec-draft-model"),
    "draft-n-gpu-layers": (
        *("-ngld", "--gpu-layers-draft"),
        *("--n-gpu-layers-draft", "--spec-draft-ngl"),
    ),
    "draft-threads": ("-td", "--threads-draft", "--spec-draft-threads"),
    "draft-threads-batch": ("-tbd", "--threads-batch-draft", "--spec-draft-threads-batch"),
    "dynatemp-exponent": ("--dynatemp-exp",),
    "embeddings": ("--embedding",),
    "flash-attention": ("-fa", "--flash-attn"),
    "http-cors": ("--cors-origins",),
    "http-key-file": ("--api-key-file",),
    "http-slots": ("--slots",),
    "json-schema": ("-j",),
    "logit-bias": ("-l",),
    "lookup-cache-dynamic": ("-lcd",),
    "lookup-cache-static": ("-lcs",),
    "main-gpu": ("-mg",),
    "mirostat-eta": ("--mirostat-lr",),
    "mirostat-tau": ("--mirostat-ent",),
    "n-gpu-layers": ("-ngl", "--gpu-layers"),
    "n-max": ("--draft-max", "--draft-n", "--spec-draft-n-max"),
    "n-min": ("--draft-min", "--draft-n-min", "--spec-draft-n-min"),
    "n-predict": ("--predict",),
    "p-min": ("--draft-p-min", "--spec-draft-p-min"),
    "p-split": ("--draft-p-split", "--spec-draft-p-split"),
    "seed": ("-s",),
    "sessions": ("-np", "--parallel"),
    "stop": ("-r", "--reverse-prompt"),
    "system": ("-sys", "--system-prompt"),
    "temperature": ("--temp",),
    "tensor-split": ("-ts",),
    "threads": ("-t",),
    "threads-batch": ("-tb",),
    "tls-cert": ("--ssl-cert-file",),
    "tls-key": ("--ssl-key-file",),
    "top-n-sigma": ("--top-nsigma",),
    "typical-p": ("--typical",),
}
"""By the name of an option here: llama.cpp's names of the same."""

FORMS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("-hf", "-hfr", "--hf-repo"), ("model", "hf:{}")),
    **dict.fromkeys(
        ("-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"), ("draft-model", "hf:{}")
    ),
    "--grammar-file": ("grammar", "@{}"),
    **dict.fromkeys(("-jf", "--json-schema-file"), ("json-schema", "@{}")),
    **dict.fromkeys(("-kvu", "--kv-unified"), ("kv-cache", "pool")),
    **dict.fromkeys(("-no-kvu", "--no-kv-unified"), ("kv-cache", "streams")),
}
"""llama.cpp's options that are one of ours with another value; {} is what was given."""

_TEXT_SOURCES = ("suffix", "copy")
SPEC_TYPES: dict[str, Sequence[str]] = {
    "none": (),
    "draft-simple": ("model",),
    "draft-mtp": ("mtp",),
    "draft-eagle3": ("eagle3",),
    "draft-dflash": ("dflash",),
    "draft-dspark": ("dspark",),
    "ngram-simple": _TEXT_SOURCES,
    "ngram-map-k": _TEXT_SOURCES,
    "ngram-map-k4v": _TEXT_SOURCES,
    "ngram-mod": _TEXT_SOURCES,
    "ngram-cache": ("ngram",),
}
"""What llama-server's --spec-type names, as the drafters that do so here."""


@cache
def refusals() -> Mapping[str, str]:
    """Return what is said of each of llama.cpp's options that has no counterpart."""
    text = files(__package__).joinpath("llama_options.toml").read_text(encoding="utf-8")
    found = dict[str, str]()
    for kind, rows in tomllib.loads(text).items():
        for names, words in rows.items():
            found |= {name: _refusal(kind, name, words) for name in names.split()}
    return found


def _refusal(kind: str, name: str, words: str) -> str:
    if kind == "changes-nothing":
        return f"{name} changes nothing here, leave it out: {words}"
    return f"{name} is no option here: {words}"
