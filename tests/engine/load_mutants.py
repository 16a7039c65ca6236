"""Loads damaged models, each in a process of its own that it may kill; tells what came of each.

A program: `python -m tests.engine.load_mutants FILE SEED COUNT`. For the mutants
of numbers SEED up to SEED + COUNT it prints a line with the number, the word
`loaded`, `headless` for one whose head is not used, `refused` or `died`, and the reason.
"""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from outrider.engine.guesser import Guess
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Row
from outrider.engine.own_draft import DraftAsk, DraftLine
from outrider.errors import DecodeFailed, InvalidConfig
from outrider.model_service.run import open_own_head
from outrider.sampling import GREEDY, SamplingParameters

SECONDS = 20
MEMORY = 4 << 30
WORDS = (0, 1, 2, 3, 7, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 32, (1 << 64) - 1)


def mutant(data: bytes, number: int) -> bytes:
    """Return a file with one to four things wrong with it; the same number gives the same."""
    choose = random.Random(number)
    header = len(data) - len(data[data.rfind(b".weight") :]) + 64
    near = [m.end() for m in re.finditer(rb"[a-z]+\.[a-z0-9_.]{3,}", data[:header])]
    changed = bytearray(data)
    for _ in range(choose.choice((1, 1, 1, 2, 4))):
        kind = choose.random()
        where = choose.randrange(header)
        if kind < 0.6:
            # What follows a name: a type, a length, a value, a shape, an offset.
            where = choose.choice(
                (choose.randrange(24), choose.choice(near) + choose.randrange(40))
            )
        if kind < 0.1:
            changed = changed[: choose.randrange(len(changed)) + 1]
        elif kind < 0.2:
            where = choose.randrange(len(changed))
            changed[where : where + 64] = (
                choose.choice((b"\x7f\xc0", b"\xff\xff", b"\x00\x7c")) * 32
            )
        elif kind < 0.5:
            width = choose.choice((1, 4, 8))
            word = choose.choice(WORDS) & (1 << 8 * width) - 1
            changed[where : where + width] = word.to_bytes(width, "little")
        elif where < len(changed):
            old = changed[where]
            steps = (old ^ 1 << choose.randrange(8), old + 1, old - 1, 0, choose.randrange(256))
            changed[where] = choose.choice((*steps, choose.randrange(13))) & 0xFF
    return bytes(changed[: len(data)])


def use(path: Path) -> str:
    """Load a model and do with it what a service does; return what came of it."""
    try:
        config = LlamaConfig(
            path=path,
            context=64,
            sequence_count=2,
            thread_count=1,
            pad_multiple=4,
            batch_rows=64,
            mtp=True,
        )
        model = LlamaModel(config)
        head = open_own_head(model)
        size = model.describe().vocabulary.token_count
        assert len(model.token_texts()) == len(model.token_names()) == size
        ids = model.tokenize(bytes(range(256)), add_special=True, parse_special=True)[:6]
        assert all(0 <= token_id < size for token_id in ids)
        for text in ([size - 1, 0, size // 2], ids or [0]):
            [rows, _] = model.decode([Chunk(0, 0, text, 1), Chunk(1, 0, text, len(text))])
            for parameters in (GREEDY, SamplingParameters()):
                model.sampler(parameters).distribution(rows[0])
            assert np.isfinite(rows[0]).all()
            if head is not None:
                head.draft([DraftLine(bytes(16), b"", DraftAsk([*text, 0], 3, best), 0)], 9.0)
            model.copy_prefix(0, 1, 1)
            model.truncate(0, 0)
            model.truncate(1, 0)
        is_headless = model.head_fault or (model.has_head and not (head and head.is_usable))
        if head is not None:
            head.close()
        model.close()
    except (InvalidConfig, DecodeFailed) as error:
        assert "\n" not in str(error)
        return f"refused {error}"
    return f"headless {model.head_fault}" if is_headless else "loaded"


def best(row: Row, position: int, text: Sequence[int]) -> Guess:
    """Guess the most probable token."""
    return Guess(int(row.argmax()), 255)


def use_apart(path: Path, use: Callable[[Path], str] = use) -> str:
    """`use` in a child, under limits of time and memory."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ["GGML_NO_BACKTRACE"] = "1"
        os.dup2(os.open(f"{path}.said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        try:
            said = use(path)
        except BaseException as error:
            said = f"died {type(error).__name__}: {error}"
        os.write(writer, said.encode()[:2000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 0:
        return said
    return f"died {code}: {Path(f'{path}.said').read_text(errors='replace').strip()[-300:]!r}"


def main() -> None:
    data, first, count = Path(sys.argv[1]).read_bytes(), int(sys.argv[2]), int(sys.argv[3])
    path = Path(sys.argv[1] + ".mutant")
    for number in range(first, first + count):
        path.write_bytes(mutant(data, number))
        print(number, use_apart(path), flush=True)


if __name__ == "__main__":
    main()
