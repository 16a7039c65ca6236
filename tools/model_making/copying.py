"""Writes a pair of models that copies from its prompts, at the cost of real models.

    python -m model_making.copying --shape 1.1b --agreement 0.8 --out DIR \\
        --tokenizer models/stdlib-target-q8_0.gguf [--hybrid qwen35]

Random weights write texts in which nothing repeats. Here the next token
follows from the last one alone: its row of the head points where the last
one's embedding does. The layers cost what they always cost and add next to
nothing. Prompts and the texts that follow them are drawn by tools/model_making/tasks.py
and stand in DIR/tasks.json.

With --hybrid most of the target's layers have a state in place of keys and values.

The draft, of one layer with attention, says the same for a share of the tokens. What it gives
its guess is the chance that the guess is right.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import TokenType
from numpy.typing import NDArray

from model_making.hybrids import HYBRIDS, Hybrid
from model_making.synthetic import (
    SHAPES,
    TOKENS,
    TYPES,
    Constant,
    Keys,
    Shape,
    Tensor,
    enlarged,
    quiet_tokens,
    read_tokenizer,
    stored,
    tensors,
    write_tensors,
)
from model_making.tasks import Task, make_tasks, write_tasks

_RESIDUAL = 0.1
"""What all layers of the target add, relative to an embedding: 1/2 % off its direction."""

_SURE = 1.0 - 1e-6
"""The probability that the target gives the next token."""

_SPREAD = 4.0
"""Of the draft's chances, which are Beta(share * 4, (1 - share) * 4): most are near 1."""

EMBEDDINGS, HEAD = "token_embd.weight", "output.weight"


@dataclass(frozen=True, slots=True)
class Following:
    """What a model says after each token, and the probability that it gives it."""

    next_ids: NDArray[np.int64]  # int64[vocabulary]; an id at most once
    chances: NDArray[np.float64]  # float64[vocabulary]


@dataclass(frozen=True, slots=True)
class CopyingPair:
    """Two files, and the tasks that they write."""

    target: Path
    draft: Path
    tasks: list[Task]
    agreement: float  # of the tasks' tokens, those that the draft says too


def write_pair(
    shape: Shape,
    agreement: float,
    tokenizer: Path,
    out: Path,
    *,
    each: int,
    token_count: int,
    seed: int = 1,
    hybrid: Hybrid | None = None,
) -> CopyingPair:
    """Write a pair and `each` tasks of every kind. Equal arguments give equal bytes.

    Raises ValueError for a tokenizer that leaves too few of the shape's tokens to write with.
    """
    keys = read_tokenizer(tokenizer)
    own = len(keys[TOKENS].value)
    if own > shape.vocabulary // 2:
        raise ValueError(f"{tokenizer} has {own} tokens; {shape.vocabulary // 2} at most")
    keys = _readable(enlarged(keys, shape.vocabulary), own)
    # Tokens of the tokenizer may be halves of characters; added ones are texts of their own.
    tasks, following = make_tasks(range(own, shape.vocabulary), each, token_count, seed)
    target = target_following(following, shape.vocabulary)
    draft = draft_following(target, list(following), agreement, seed)
    out.mkdir(parents=True, exist_ok=True)
    pair = CopyingPair(
        out / "target.gguf", out / "draft.gguf", tasks, _agreement(tasks, target, draft)
    )
    quiet = quiet_tokens(keys)
    drafts, its = replace(shape, layers=1, tied=False), replace(shape, tied=False)
    planned = [_softened(tensor, shape) for tensor in tensors(drafts, quiet)]
    write_tensors(pair.draft, drafts, keys, planned, partial(weights, said=draft, seed=seed))
    writes = partial(weights, said=target, seed=seed)
    if hybrid is None:
        planned = [_softened(tensor, its) for tensor in tensors(its, quiet)]
        write_tensors(pair.target, its, keys, planned, writes)
    else:
        its = hybrid.sized(its)
        planned = [_softened(tensor, its) for tensor in tensors(its, quiet, hybrid.layer)]
        header = hybrid.write_header
        write_tensors(pair.target, its, keys, planned, writes, hybrid.architecture, header)
    write_tasks(out / "tasks.json", tasks)
    return pair


def target_following(following: Mapping[int, int], vocabulary: int) -> Following:
    """Return what the target says: what a map has, and after other tokens those tokens again."""
    next_ids = np.arange(vocabulary)
    next_ids[list(following)] = list(following.values())
    return Following(next_ids, np.full(vocabulary, _SURE))


def draft_following(
    target: Following, tokens: Sequence[int], agreement: float, seed: int
) -> Following:
    """Return what a draft says that agrees with the target on a share of `tokens`.

    Where it does not it says what the target says after another token.
    """
    random = np.random.default_rng([seed, 2])
    chances = np.full_like(target.chances, agreement)
    known = np.array(tokens)
    if agreement < 1.0:
        drawn = random.beta(agreement * _SPREAD, (1.0 - agreement) * _SPREAD, len(known))
        chances[known] = drawn
    wrong = known[random.random(len(known)) >= chances[known]]
    next_ids = target.next_ids.copy()
    next_ids[wrong] = np.roll(target.next_ids[wrong], 1)
    return Following(next_ids, chances.clip(0.02, 0.99))


def weights(tensor: Tensor, said: Following, seed: int) -> NDArray[Any]:
    """Return a tensor as it stands in a file: the head as it must be, all else random.

    With a row of the head in the direction of an embedding e, and a norm of 1
    before it, the logit is scale * sqrt(width) where e is the input, and of
    deviation `scale` elsewhere: random directions are nearly orthogonal.
    """
    if tensor.name != HEAD or isinstance(tensor, Constant):
        return stored(tensor, seed)
    blocks = stored(replace(tensor, name=EMBEDDINGS, deviation=1.0), seed)
    head = np.empty_like(blocks)
    head[said.next_ids] = blocks
    scales = head_scales(said.chances, tensor.rows, tensor.columns) / math.sqrt(tensor.columns)
    head["scale"][said.next_ids] *= scales[:, None].astype(np.float16)
    return head


def head_scales(chances: NDArray[np.float64], vocabulary: int, width: int) -> NDArray[np.float64]:
    """Return at which scale of its row the softmax gives a token a chance: float64[vocabulary].

    exp of the logit is chance / (1 - chance) times the sum over all others,
    vocabulary * exp(scale**2 / 2) for normal ones.
    """
    wanted = math.log(vocabulary) + np.log(chances / (1.0 - chances))
    scales = wanted / math.sqrt(width)
    for _ in range(8):
        scales = (wanted + np.mean(scales**2) / 2.0) / math.sqrt(width)
    return np.asarray(scales)


def _readable(keys: Keys, first: int) -> Keys:
    """Return a tokenizer that finds the tokens from `first` on in a text by their names."""
    types = keys[TYPES].value
    found = [*types[:first], *[TokenType.USER_DEFINED.value] * (len(types) - first)]
    return {**keys, TYPES: replace(keys[TYPES], value=found)}


def _softened(tensor: Tensor, shape: Shape) -> Tensor:
    """Return a tensor with embeddings of 1, layers that add little, and a head's norm of 1."""
    if isinstance(tensor, Constant):
        return replace(tensor, value=1.0) if tensor.name.endswith("norm.weight") else tensor
    if tensor.name == EMBEDDINGS:
        return replace(tensor, deviation=1.0)
    if tensor.name.endswith(("attn_output.weight", "ssm_out.weight", "ffn_down.weight")):
        share = _RESIDUAL / math.sqrt(2 * shape.layers)
        return replace(tensor, deviation=tensor.deviation * share)
    return tensor


def _agreement(tasks: Sequence[Task], target: Following, draft: Following) -> float:
    before = [token_id for task in tasks for token_id in (task.prompt[-1], *task.text[:-1])]
    return float(np.mean(target.next_ids[before] == draft.next_ids[before]))


def main() -> None:
    """Write a pair and print what it is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--hybrid", choices=HYBRIDS, help="make the target one of these")
    parser.add_argument("--agreement", type=float, default=0.8, help="of the draft, per token")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        required=True,
        help="a GGUF file of half the shape's tokens at most",
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--each", type=int, default=8, help="prompts of every kind")
    parser.add_argument("--tokens", type=int, default=512, help="of every text")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not 0.0 < options.agreement <= 1.0:
        parser.error("--agreement must be above 0 and at most 1")
    try:
        pair = write_pair(
            SHAPES[options.shape],
            options.agreement,
            options.tokenizer,
            options.out,
            each=options.each,
            token_count=options.tokens,
            seed=options.seed,
            hybrid=HYBRIDS.get(options.hybrid),
        )
    except ValueError as error:
        parser.error(str(error))
    print(f"{pair.target}, {pair.draft}: the draft agrees on {pair.agreement:.3f} of the texts")
    for task in pair.tasks[: len(pair.tasks) // options.each]:
        sizes = f"{len(task.prompt)} tokens of prompt, {len(task.text)} of text"
        print(f"{task.kind}: {sizes}, {task.copied_share:.2f} of them copied")


if __name__ == "__main__":
    main()
