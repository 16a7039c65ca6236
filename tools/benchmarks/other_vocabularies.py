"""What drafts with fewer of the target's tokens have accepted, beside the bundled draft itself.

python -m benchmarks.other_vocabularies [GGUF ...]
    python -m benchmarks.other_vocabularies --write GGUF OUT [SHARE]

With files, those are the drafts that are compared with it; `--write` writes one for benchmarks of
speed, another draft's with its tokens in a random order and only a share of them. Else
each draft is the bundled one without the last of its tokens, the others in a random order: its
tokenizer has fewer merges, and it was not trained with so few. Both levels are tried.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter
from numpy.typing import NDArray

from draft_service import translations
from outrider.speculation import Policy, Speculation
from tests.support.services import (
    DRAFT,
    TARGET,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    generate,
    request,
    running,
)

MODELS = Path(__file__).resolve().parents[2] / "models"
_PROMPTS = ("def read_config(path):", "class Server:\n    def __init__(self", "import os\n\n# Walk")
_TOKENS = 160
_SPECIALS = 3
_BYTES = 259  # these, and a token for every byte
_KEPT = (2048, 1024, 512)


def reordered(path: Path, draft: Path, order: NDArray[np.int64]) -> Path:
    """Write a draft with these of its tokens alone, in this order."""
    reader = GGUFReader(draft)
    writer = GGUFWriter(path, "llama")
    names = reader.fields["tokenizer.ggml.tokens"].contents()
    for field in reader.fields.values():
        key = field.name
        if key.startswith("GGUF.") or key in ("general.architecture",):
            continue
        value = field.contents()
        if key == "tokenizer.ggml.tokens":
            value = [names[i] for i in order]
        elif key in ("tokenizer.ggml.token_type", "tokenizer.ggml.scores"):
            value = [value[i] for i in order]
        elif key == "tokenizer.ggml.merges":
            known = {names[i] for i in order}
            value = [each for each in value if each.replace(" ", "") in known]
        elif key == "llama.vocab_size":
            value = len(order)
        kind = field.types[0]
        writer.add_key_value(key, value, kind, field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        data = tensor.data
        if tensor.name in ("token_embd.weight", "output.weight"):
            data = data[order]
        writer.add_tensor(tensor.name, np.ascontiguousarray(data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def shortened(path: Path, count: int) -> Path:
    """Write the bundled draft with its first `count` tokens alone, in another order."""
    order = np.arange(count)
    order[_SPECIALS:] = np.random.default_rng(1).permutation(order[_SPECIALS:])
    return reordered(path, MODELS / "stdlib-draft-q8_0.gguf", order)


def write(draft: Path, out: Path, share: float) -> None:
    """Write a draft without some of its ordinary tokens, and these in another order."""
    [names] = (f for f in GGUFReader(draft).fields.values() if f.name == "tokenizer.ggml.tokens")
    random, count = np.random.default_rng(1), len(names.data)
    ordinary = random.permutation(np.arange(_BYTES, count))[: round(share * (count - _BYTES))]
    reordered(out, draft, np.concatenate([np.arange(_BYTES), ordinary]))


@contextmanager
def at_level(share: float) -> Iterator[None]:
    """Take the token level from this share on: 0 always, 2 never."""
    before, translations.LEAST_SHARE = translations.LEAST_SHARE, share  # type: ignore[misc]
    try:
        yield
    finally:
        translations.LEAST_SHARE = before  # type: ignore[misc]


def _load(path: Path) -> object:
    from outrider.engine.llama import LlamaModel
    from outrider.engine.llama_loading import LlamaConfig

    return LlamaModel(
        LlamaConfig(path=path, context=512, sequence_count=2, thread_count=1, pad_multiple=4)
    )


@asynccontextmanager
async def _services(draft: Path) -> object:  # type: ignore[misc]
    speculation = Speculation(n_max=4, policy=Policy.FIXED, run_ahead=False)
    target = MODELS / "stdlib-target-q8_0.gguf"
    async with (
        running(ModelProcess(TARGET, lambda: _load(target))) as one,
        running(ModelProcess(DRAFT, lambda: _load(draft))) as other,
        running(
            OrchestratorProcess(one.address, other.address, speculation=speculation)
        ) as orchestrator,
    ):
        await orchestrator.until_ready()
        await eventually(lambda: not orchestrator.pool.obstacle())
        yield orchestrator


async def _measure(name: str, draft: Path) -> None:
    async with _services(draft) as orchestrator:
        [paired] = orchestrator.pool.drafts
        mass = paired.translation.shared_mass if paired.translation is not None else 1.0
        shown = []
        for temperature in (0.0, 0.8):
            drafted = accepted = 0
            texts = []
            for prompt in _PROMPTS:
                asked = request(prompt, temperature=temperature, token_limit=_TOKENS)
                completion = await generate(orchestrator, asked, timeout=100.0)
                drafted += completion.statistics.drafted_token_count
                accepted += completion.statistics.accepted_token_count
                texts.append(completion.text)
            shown.append(f"{accepted / max(1, drafted):.2f} ({drafted})")
        print(f"| {name} | {mass:.2f} | {shown[0]} | {shown[1]} |", flush=True)


async def main() -> None:
    """Print a table, or write a draft."""
    if sys.argv[1:2] == ["--write"]:
        draft, out, *share = sys.argv[2:]
        write(Path(draft), Path(out), float(share[-1]) if share else 1.0)
        return
    print("| draft | mass of shared tokens | accepted, greedy (of) | T 0.8 (of) |")
    print("|---|---|---|---|")
    await _measure("bundled", MODELS / "stdlib-draft-q8_0.gguf")
    with tempfile.TemporaryDirectory() as folder:
        drafts = {Path(name).stem: Path(name) for name in sys.argv[1:]} or {
            f"{count} tokens": shortened(Path(folder) / f"{count}.gguf", count) for count in _KEPT
        }
        for name, path in drafts.items():
            for level, share in (("token", 0.0), ("string", 2.0)):
                with at_level(share):
                    await _measure(f"{name}, {level} level", path)


if __name__ == "__main__":
    asyncio.run(main())
