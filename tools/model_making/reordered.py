"""Writes a model with fewer of its tokens, and these in another order: a foreign vocabulary.

    python -m model_making.reordered DRAFT OUT [SHARE]

Its tokenizer has fewer merges, and it was not trained with so few. SHARE is of its ordinary tokens.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter
from numpy.typing import NDArray

BUNDLED_DRAFT = Path(__file__).resolve().parents[2] / "models" / "stdlib-draft-q8_0.gguf"
_SPECIALS = 3
_BYTES = 259  # these, and a token for every byte


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
    return reordered(path, BUNDLED_DRAFT, order)


def write(draft: Path, out: Path, share: float) -> None:
    """Write a draft without some of its ordinary tokens, and these in another order."""
    [names] = (f for f in GGUFReader(draft).fields.values() if f.name == "tokenizer.ggml.tokens")
    random, count = np.random.default_rng(1), len(names.data)
    ordinary = random.permutation(np.arange(_BYTES, count))[: round(share * (count - _BYTES))]
    reordered(out, draft, np.concatenate([np.arange(_BYTES), ordinary]))


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]) if sys.argv[3:] else 1.0)
