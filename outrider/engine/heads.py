"""Which head a GGUF file carries, and whether it may be run: llama.cpp ends the process where not.

A head drafts from the target's hidden rows. Multi-token prediction (MTP) is a block behind the
target's own in its file, or such a block alone; EAGLE-3, DFlash and DSpark are files of their
own. Pure: it looks at the keys and the tensors' names of a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from outrider.speculation import HeadKind

_NEXTN = ("nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight")
_ROUTED = ("ffn_gate_inp.weight",)
_DENSE = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
_SHARED = ("ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight")
_EXPERTS = (*_ROUTED, *_SHARED, "ffn_down_exps.weight")
_ANY_FORWARD = (
    _DENSE,
    (*_EXPERTS, "ffn_gate_exps.weight", "ffn_up_exps.weight"),
    (*_EXPERTS, "ffn_gate_up_exps.weight"),
)


@dataclass(frozen=True, slots=True)
class _MtpGraph:
    """What llama.cpp's graph of an MTP block takes and gives."""

    tensors: tuple[tuple[str, ...], ...] = ((),)
    """Sets of tensors beside `_NEXTN`, one of which a block has, or the process may end."""
    takes_blocks: bool = False
    """Whether a head may have several blocks."""
    gives_wanted: bool = False
    """Whether it has hidden rows of the wanted tokens alone."""


_MTP_GRAPHS: Mapping[str, _MtpGraph] = {
    "qwen35": _MtpGraph(),
    "qwen35moe": _MtpGraph((_ROUTED,)),
    "qwen3next": _MtpGraph((_ROUTED,), gives_wanted=True),
    "glm4moe": _MtpGraph((_ROUTED,)),
    "deepseek2": _MtpGraph(((*_ROUTED, "attn_q_a.weight", "attn_k_b.weight"),)),
    "deepseek32": _MtpGraph((_ROUTED,)),
    "glm-dsa": _MtpGraph((_ROUTED,)),
    "bailingmoe3": _MtpGraph(),
    "cohere2moe": _MtpGraph((_ROUTED,)),
    "nemotron_h_moe": _MtpGraph((_ROUTED,)),
    "hy_v3": _MtpGraph(_ANY_FORWARD, takes_blocks=True),
    "step35": _MtpGraph(_ANY_FORWARD, takes_blocks=True, gives_wanted=True),
    "mimo2": _MtpGraph((("attn_qkv.weight", *_DENSE),), takes_blocks=True, gives_wanted=True),
}
"""Of the architectures whose graph was read, and run on a tiny file; any other may end the
process."""

_FEEDS_LAYERS = frozenset(
    {
        *("llama", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "gemma4"),
        *("gpt-oss", "minimax-m2", "minimax-01", "nemotron_h", "nemotron_h_moe", "mimo2", "lfm2"),
        *("deepseek4", "bailingmoe3", "hunyuan_vl", "nanbeige", "muse-glimmer"),
    }
)
"""Architectures whose graph keeps the inputs of its layers; of another one that is asserted. That
of qwen4exp keeps several rows of a token, which is asserted, too. Of llama, qwen3, qwen3moe,
qwen35, qwen35moe and gpt-oss a tiny file was run, of the others the graph was read."""

_SHOWS_LAST = frozenset({"qwen35", "qwen35moe", "gpt-oss"})
"""Of those, the ones whose last row may be read as the input of the layer after the last."""


MOST_BLOCK = 64  # tokens of a block; those that are known have 16 at most


@dataclass(frozen=True, slots=True)
class Head:
    """A head as its file says it is."""

    kind: HeadKind
    architecture: str
    """Of the file that it is in."""
    is_alone: bool = True
    """Whether the file holds nothing that writes by itself."""
    block_count: int = 1
    """Blocks behind each other, each of which drafts one token; one drafts any number."""
    gives_wanted: bool = False
    """Whether llama.cpp has hidden rows of its wanted tokens alone."""
    target_layers: tuple[int, ...] = ()
    """The layers of the target whose inputs it reads; none for MTP, which reads the last row."""
    width: int = 0
    """Numbers of a row of the target's, or of each of its layers'."""
    borrows: bool = False
    """Whether it uses the target's matrices for tokens, so that it must be in its process."""
    fault: str = ""
    """Why it is not used, after its file's name; empty: nothing is known against it."""

    @property
    def row_width(self) -> int:
        """Numbers of what it reads of the target at a token."""
        return self.width * max(1, len(self.target_layers))


@dataclass(frozen=True, slots=True)
class Beside:
    """The target that a head in another file is to draft for."""

    architecture: str
    layer_count: int
    width: int
    """Numbers of its rows."""


def feeds_layers(architecture: str) -> bool:
    """Return whether a model shows what its layers read."""
    return architecture in _FEEDS_LAYERS


def taught_layers(count: int) -> tuple[int, ...]:
    """Return the layers whose inputs a head is taught from, of a target with so many; () for none.

    EAGLE-3 (2503.01840) takes a low, a middle and a high one. The last is the highest that all
    targets show.
    """
    low, high = min(2, count - 3), count - 1
    return (low, min(max(low + 1, count // 2), high - 1), high) if count >= 3 else ()


def feeds_mtp(architecture: str) -> bool:
    """Return whether a model has hidden rows for MTP heads, with one in its file or without."""
    return architecture in _MTP_GRAPHS


def find_head(values: Mapping[str, object], tensors: Collection[str]) -> Head | None:
    """Return the head that a file with these keys and tensors carries; None where it has none."""
    named = values.get("general.architecture")
    architecture = named.decode("utf-8", "replace") if isinstance(named, bytes) else ""
    if architecture in ("eagle3", "dflash"):
        return _head_file(architecture, values, tensors)
    if architecture == "gemma4-assistant":
        return Head(HeadKind.MTP, architecture, fault=_unsupported(architecture))
    blocks = values.get(f"{architecture}.block_count")
    count = values.get(f"{architecture}.nextn_predict_layers")
    if not isinstance(blocks, int) or not isinstance(count, int) or not 0 < count < blocks:
        return None
    its = range(blocks - count, blocks)
    # What llama.cpp goes by; architectures whose heads it cannot run may have other norms.
    trunk = "blk.0.attn_norm.weight" if architecture in _MTP_GRAPHS else "blk.0."
    is_alone = not any(name.startswith(trunk) for name in tensors)
    if not is_alone and not any(name.startswith(f"blk.{its.start}.nextn.") for name in tensors):
        return None  # converted without it
    # No graph scales attention by the position.
    is_scaled = f"{architecture}.attention.temperature_scale" in values
    graph = None if is_scaled else _MTP_GRAPHS.get(architecture)
    return Head(
        HeadKind.MTP,
        architecture,
        is_alone=is_alone,
        width=_number(values, f"{architecture}.embedding_length"),
        block_count=count,
        gives_wanted=graph is not None and graph.gives_wanted,
        fault=_mtp_fault(architecture, graph, its, tensors),
    )


def _mtp_fault(
    architecture: str, graph: _MtpGraph | None, blocks: range, tensors: Collection[str]
) -> str:
    if graph is None:
        return _unsupported(architecture)
    if len(blocks) > 1 and not graph.takes_blocks:
        count = len(blocks)
        return f"has {count} MTP heads, of which llama.cpp takes one in {architecture} models"
    for number in blocks:
        block = f"blk.{number}."
        missing = [
            [name for name in (*_NEXTN, *wanted) if block + name not in tensors]
            for wanted in graph.tensors
        ]
        if least := min(missing, key=len):
            return f"has an MTP head without {block}{least[0]}"
    return ""


def _number(values: Mapping[str, object], key: str) -> int:
    found = values.get(key)
    return found if isinstance(found, int) else 0


def _unsupported(architecture: str) -> str:
    return f"has an MTP head of {architecture}, which is not supported"


def _head_file(architecture: str, values: Mapping[str, object], tensors: Collection[str]) -> Head:
    kind = HeadKind.EAGLE3 if architecture == "eagle3" else HeadKind.DFLASH
    if kind is HeadKind.DFLASH and "markov_w1.weight" in tensors:
        kind = HeadKind.DSPARK
    listed = values.get(f"{architecture}.target_layers")
    layers = tuple(x for x in listed if isinstance(x, int)) if isinstance(listed, tuple) else ()
    own_width = _number(values, f"{architecture}.embedding_length")
    named = "target_hidden_size" if kind is HeadKind.EAGLE3 else "embedding_length"
    width = _number(values, f"{architecture}.{named}")
    # DFlash writes with its token embeddings where it has no output matrix.
    needed = {"token_embd.weight"} | ({"output.weight"} if kind is HeadKind.EAGLE3 else set())
    borrows = not needed <= set(tensors)
    sizes = [values.get(f"{architecture}.attention.{x}_length") for x in ("key", "value")]
    if not layers:
        fault = "names no layers of its target"
    elif sizes[0] != sizes[1]:
        fault = f"has heads of {sizes[0]} keys and {sizes[1]} values"
    elif "d2t" in tensors and "output.weight" not in tensors:
        fault = "has tokens of its own and no output matrix"
    elif borrows and own_width != width:
        fault = f"has no token embeddings for its width of {own_width}"
    elif kind is HeadKind.EAGLE3:
        fault = _eagle3_fault(values, layers)
    else:
        fault = _dflash_fault(values, tensors, kind)
    if fault:
        fault = f"is {kind.words} that {fault}"
    if any(name.startswith("selector_") for name in tensors):
        fault = "is a DFlash2 head, which is not supported"
    return Head(kind, architecture, target_layers=layers, width=width, borrows=borrows, fault=fault)


def _eagle3_fault(values: Mapping[str, object], layers: tuple[int, ...]) -> str:
    if len(layers) != 3:
        return f"reads {len(layers)} layers, not 3"
    blocks = _number(values, "eagle3.block_count")
    return "" if blocks == 1 else f"has {blocks} blocks, not 1"


def _dflash_fault(values: Mapping[str, object], tensors: Collection[str], kind: HeadKind) -> str:
    size, mask = values.get("dflash.block_size", 16), values.get("tokenizer.ggml.mask_token_id")
    tokens = values.get("tokenizer.ggml.tokens")
    count = len(tokens) if isinstance(tokens, list) else 0
    if "dflash.hyper_connection.count" in values:
        return "is of DeepSeek V4, which is not supported"
    if not isinstance(size, int) or not 1 < size <= MOST_BLOCK:
        return f"drafts blocks of {size}"
    if kind is HeadKind.DSPARK and "dflash.block_size" not in values:
        return "does not name the size of its blocks"
    if not isinstance(mask, int) or not 0 <= mask < count:
        return f"has no mask among its {count} tokens"
    return ""


def fault_beside(head: Head, target: Beside) -> str:
    """Return why a head cannot read a target; empty where nothing is known against it.

    llama.cpp's graphs assert that the target has the layers that are read.
    """
    words, architecture = head.kind.words, target.architecture
    if head.kind is HeadKind.MTP and head.architecture != architecture:
        return f"is {words} of {head.architecture}, and the target is {architecture}"
    if head.width != target.width:
        return f"is {words} of a target of width {head.width}, not {target.width}"
    if head.kind is not HeadKind.MTP and architecture not in _FEEDS_LAYERS:
        return f"is {words}, and {architecture} models do not show their layers"
    count = target.layer_count
    shows_last = head.kind is HeadKind.EAGLE3 and architecture in _SHOWS_LAST
    if not all(0 <= layer < count + shows_last for layer in head.target_layers):
        read = ", ".join(map(str, head.target_layers))
        return f"is {words} that reads layers {read}; the target has {count}"
    return ""


@dataclass(frozen=True, slots=True)
class CarriedHead:
    """A head, and what its file has of it alone."""

    head: Head
    block_count: int
    weights: int
    """Bytes."""


def carried(head: Head | None, tensor_bytes: Mapping[str, int]) -> CarriedHead | None:
    """Return what a file with these tensors has of its head; None where it has none."""
    if head is None:
        return None
    sizes = Counter[str]()
    for name, size in tensor_bytes.items():
        sizes[_block(name)] += size
    blocks = sizes.keys() - {""}
    if head.is_alone:
        return CarriedHead(head, len(blocks), sizes.total())
    blocks &= {_block(name) for name in tensor_bytes if ".nextn." in name}
    return CarriedHead(head, len(blocks), sum(sizes[block] for block in blocks))


def _block(name: str) -> str:
    """Return the number of the block that a tensor is of; empty for one of none."""
    return name.split(".")[1] if name.startswith("blk.") else ""
