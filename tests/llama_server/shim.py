"""Starts Outrider, or a real llama-server, on a bundled model from llama-server's command line.

llama.cpp's tests start this wherever they start a server. It runs as a script:

    python shim.py [--instead=LLAMA_SERVER] OPTIONS OF LLAMA-SERVER
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

MODELS = Path(__file__).resolve().parents[2] / "models"
TARGET = MODELS / "stdlib-target-q8_0.gguf"
DRAFT = MODELS / "stdlib-draft-q8_0.gguf"
INSTEAD = "--instead="

# Options of llama-server, each with the one of `outrider up` that means the same.
_COUNTERPARTS = {
    "--alias": "--alias",
    "--chat-template-file": "--chat-template-file",
    "--cors-origins": "--http-cors",
    "--embedding": "--embeddings",
    "--n-gpu-layers": "--n-gpu-layers",
    "--slots": "--http-slots",
    "--spec-draft-n-max": "--n-max",
    "--spec-draft-n-min": "--n-min",
    "--threads": "--threads",
    "-ctk": "--cache-type-k",
    "-ctv": "--cache-type-v",
}
_DEFAULT_SLOTS = 4
_DEFAULT_BATCH = 512
_LEAST_BATCH = 68  # of Outrider
_MODELS = {"--model", "--model-url", "--hf-repo", "--hf-file"}
# With several servers at a time, none gets all cores.
_THREADS = ("--threads", "1")
# Of llama-server, where Outrider is more careful.
_ANY_ORIGIN = ("--cors-origins", "*")


def read_options(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the options with their values; -1 counts as an option and keeps its place."""
    for index, word in enumerate(words):
        if word.startswith("-"):
            following = words[index + 1 : index + 2]
            yield word, None if not following or following[0].startswith("-") else following[0]


def outrider_words(words: Sequence[str], key_file: Path) -> list[str]:
    """Return the words after `outrider`; options without a counterpart are left out.

    The key that requests must carry, if there is one, is expected in `key_file`.
    """
    options = dict([_THREADS, _ANY_ORIGIN, *read_options(words)])
    drafts = (
        "--draft-model",
        str(DRAFT),
        "--policy",
        "fixed",
    )  # which drafts where it does not pay too
    slots = int(options.get("--parallel") or _DEFAULT_SLOTS)
    context = int(options.get("--ctx-size") or 0)
    return [
        *("up", "--model", str(TARGET)),
        *(drafts if "--model-draft" in options else ("--no-draft",)),
        *("--listen", "127.0.0.1:0", "--http", f"{options['--host']}:{options['--port']}"),
        *("--sessions", str(slots)),
        *("--batch", str(max(_LEAST_BATCH, int(options.get("--batch-size") or _DEFAULT_BATCH)))),
        *("--ctx", str(context if "--kv-unified" in options else context // slots)),
        *(("--metrics-names", "llamacpp") if "--metrics" in options else ()),
        *(("--http-key-file", str(key_file)) if "--api-key" in options else ()),
        *(
            word
            for theirs, ours in _COUNTERPARTS.items()
            if theirs in options
            for word in (ours, options[theirs])
            if word is not None
        ),
    ]


def llama_server_words(words: Sequence[str]) -> list[str]:
    """Return the words after a real `llama-server`: the same options, but for the models."""
    options = [_THREADS, *read_options(words)]
    names = {name for name, value in options}
    kept = [pair for pair in options if pair[0] not in _MODELS | {"--model-draft", "--offline"}]
    if _MODELS & names:  # without any it is a router
        kept.append(("--model", str(TARGET)))
    if "--model-draft" in names:
        kept.append(("--model-draft", str(DRAFT)))
    if "--embedding" in names and "--pooling" not in names:  # what Outrider does
        kept.append(("--pooling", "mean"))
    return [word for pair in kept for word in pair if word is not None]


def _write_key(words: Sequence[str]) -> Path:
    """Write the key where only this user reads it; the runner removes the folder of such files."""
    key = dict(read_options(words)).get("--api-key") or ""
    with tempfile.NamedTemporaryFile("w", prefix="key", delete=False) as file:
        file.write(key)
    return Path(file.name)


def main() -> None:
    """Become the server, so that a signal to this process is one to it."""
    words = sys.argv[1:]
    if words[:1] and words[0].startswith(INSTEAD):
        program = words[0].removeprefix(INSTEAD)
        os.execv(program, [program, *llama_server_words(words[1:])])
    program = str(Path(sys.executable).with_name("outrider"))
    os.execv(program, [program, *outrider_words(words, _write_key(words))])


if __name__ == "__main__":
    main()
