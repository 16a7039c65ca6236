"""A draft that knows nothing: a real model's file with its weights shuffled."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader

_BLOCK = 34  # a Q8_0 block: a half-precision scale, then 32 weights


def write_junk(source: Path, destination: Path, seed: int = 1) -> Path:
    """Copy a Q8_0 model with the weights of every block matrix in another order."""
    shutil.copy(source, destination)
    generator = np.random.default_rng(seed)
    for tensor in GGUFReader(destination, "r+").tensors:
        if tensor.tensor_type == GGMLQuantizationType.Q8_0:
            blocks = tensor.data.reshape(-1, _BLOCK)
            blocks[:, 2:] = generator.permuted(blocks[:, 2:], axis=0)
    return destination
