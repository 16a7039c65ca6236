"""Writes what was taught as a GGUF file that llama.cpp loads as a draft, and reads a head back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, quants
from gguf.quants import dequantize
from numpy.typing import NDArray

from outrider.errors import InvalidConfig, StateUnavailable
from outrider_teach.draft import DraftModel
from outrider_teach.head import EagleHead, HeadShape
from outrider_teach.needs import DRAFT_LAYERS
from outrider_teach.target_weights import TargetFile

_ARCHITECTURE = "eagle3"
_OUTER = ("fc", "output_norm", "output")  # tensors that are of no block
_FILE_TYPES = {
    GGMLQuantizationType.F32: LlamaFileType.ALL_F32,
    GGMLQuantizationType.F16: LlamaFileType.MOSTLY_F16,
    GGMLQuantizationType.Q8_0: LlamaFileType.MOSTLY_Q8_0,
}
_BLOCK = 32  # values; what Q8_0 quantises together


def write_head(
    path: Path,
    head: EagleHead,
    target: TargetFile,
    weight_type: GGMLQuantizationType = GGMLQuantizationType.Q8_0,
) -> None:
    """Write a head for a target; the file is there when it is whole.

    Raises StateUnavailable where it cannot be written.
    """
    shape = head.shape
    with _written(path, _ARCHITECTURE) as writer:
        writer.add_name(f"EAGLE-3 head of {target.name}")
        _add_sizes(writer, shape, target, 1)
        writer.add_array(f"{_ARCHITECTURE}.target_layers", list(shape.layers))
        writer.add_uint32(f"{_ARCHITECTURE}.target_hidden_size", shape.width)
        writer.add_bool(f"{_ARCHITECTURE}.norm_before_residual", shape.norm_before_residual)
        writer.add_file_type(_FILE_TYPES[weight_type])
        _add_tokenizer(writer, target)
        for name, tensor in _tensors(head):
            _add_tensor(writer, name, tensor, weight_type)
        drafted = head.drafted.cpu().numpy().astype(np.int64)
        if len(drafted) < target.vocabulary:
            # Ids themselves, where the files of EAGLE-3's authors have differences.
            writer.add_tensor("d2t", drafted, raw_dtype=GGMLQuantizationType.I64)


def write_draft(
    path: Path,
    draft: DraftModel,
    target: TargetFile,
    weight_type: GGMLQuantizationType = GGMLQuantizationType.Q8_0,
) -> None:
    """Write a draft model for a target, with that one's matrices as they are in its file.

    Raises StateUnavailable where it cannot be written.
    """
    with _written(path, "llama") as writer:
        writer.add_name(f"Draft model of {target.name}")
        _add_sizes(writer, draft.shape, target, DRAFT_LAYERS)
        writer.add_file_type(_FILE_TYPES[weight_type])
        _add_tokenizer(writer, target)
        for each in target.matrices:
            writer.add_tensor(each.name, each.data, raw_dtype=each.tensor_type)
        for name, parameter in draft.named_parameters():
            _add_tensor(writer, name, parameter.detach().float().cpu().numpy(), weight_type)


@contextmanager
def _written(path: Path, architecture: str) -> Iterator[GGUFWriter]:
    """Give a file's writer; the file is there when it is whole."""
    part = path.with_name(f".{path.name}.part")
    try:
        writer = GGUFWriter(part, architecture)
        yield writer
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StateUnavailable(f"cannot write {path}: {error.strerror}") from None


def _add_sizes(writer: GGUFWriter, shape: HeadShape, target: TargetFile, layers: int) -> None:
    writer.add_context_length(int(target.number("context_length", 4096)))
    writer.add_embedding_length(shape.width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_vocab_size(target.vocabulary)


def _add_tokenizer(writer: GGUFWriter, target: TargetFile) -> None:
    """Copy the target's tokens: a head or draft that has others is refused."""
    for name, field in target.fields.items():
        if not name.startswith("tokenizer.ggml."):
            continue
        if field.types[0] is GGUFValueType.ARRAY:
            writer.add_array(name, field.contents())
        else:
            writer.add_key_value(name, field.contents(), field.types[0])


def _tensors(head: EagleHead) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for name, parameter in head.named_parameters():
        tensor = parameter.detach()
        if name == "fc.weight":
            tensor = tensor * head.row_scale
        outer = name.split(".")[0] in _OUTER
        yield name if outer else f"blk.0.{name}", tensor.float().cpu().numpy()


def _add_tensor(
    writer: GGUFWriter, name: str, tensor: NDArray[np.float32], kind: GGMLQuantizationType
) -> None:
    if tensor.ndim == 1:
        kind = GGMLQuantizationType.F32
    elif kind is GGMLQuantizationType.Q8_0 and tensor.shape[1] % _BLOCK:
        kind = GGMLQuantizationType.F16
    writer.add_tensor(name, quants.quantize(np.ascontiguousarray(tensor), kind), raw_dtype=kind)


def read_head(path: Path, target: TargetFile) -> EagleHead:
    """Return the head in a file. Raises InvalidConfig where this tool cannot continue from it.

    Its values are those of the file's type: a head in Q8_0 has lost a little.
    """
    try:
        reader = GGUFReader(path)
        values = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {t.name.removeprefix("blk.0."): t for t in reader.tensors}
        drafted = tensors.pop("d2t").data if "d2t" in tensors else np.arange(target.vocabulary)
        head = EagleHead(_shape_of(values), torch.from_numpy(np.array(drafted)))
        found = {
            n: torch.from_numpy(np.array(dequantize(t.data, t.tensor_type)))
            for n, t in tensors.items()
        }
        head.load_state_dict(found | dict(head.named_buffers()))
    except (OSError, ValueError, LookupError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidConfig("head", f"{path} holds no head to go on with: {reason}") from None
    return head


def _shape_of(values: Mapping[str, Any]) -> HeadShape:
    def number(name: str) -> Any:
        return values[f"{_ARCHITECTURE}.{name}"]

    return HeadShape(
        width=number("embedding_length"),
        heads=number("attention.head_count"),
        kv_heads=number("attention.head_count_kv"),
        head_size=number("attention.key_length"),
        feed_forward=number("feed_forward_length"),
        rope_base=number("rope.freq_base"),
        epsilon=number("attention.layer_norm_rms_epsilon"),
        layers=tuple(number("target_layers")),
        norm_before_residual=number("norm_before_residual"),
    )
