"""Trains the bundled pair on the sources of Python's standard library.

    pip install -e '.[train]'      # an extra that nothing else here needs
    OMP_WAIT_POLICY=passive python -m model_making.train --work /tmp/pair

About two hours on two cores. Everything goes to the `--work` folder, with a
checkpoint every hundred steps from which the same command continues, and at
the end the two GGUF files to `--out`. `make pair-card` measures what came out.

The target is a llama-shaped model trained on next tokens, with Muon for the
matrices of its blocks and AdamW for the rest. The draft is a smaller one
trained on the target's distributions, asked for once: first by KL divergence,
then mostly by total variation, which is what decides acceptance, and every
other batch on text that the target wrote itself.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models
from torch import Tensor, nn

from model_making.corpus import LIBRARY, is_held_out, sources

VOCABULARY_SIZE = 4096
BOS, EOS, PAD = 0, 1, 2
SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|pad|>")
CONTEXT = 1024
TOKENS_PER_STEP = 8192
HELD_OUT_BATCHES, HELD_OUT_WINDOWS = 6, 128
TOP = 32
LESSON_PARTS, LESSON_WINDOWS = 8, 1024  # half of the corpus
OWN_TEXT_ROUNDS = 4  # of 128 texts
OWN_TEMPERATURES = (1e-3, 0.8, 0.8, 1.0)  # in turn


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """A byte-level BPE with GPT-2's pre-tokenizer, which llama.cpp knows by name."""
    tokenizer = Tokenizer(tokenizer_models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> npt.NDArray[np.int64]:
    """The texts one after the other, each between <bos> and <eos>."""
    parts = [
        np.array([BOS, *encoding.ids, EOS], dtype=np.int64)
        for encoding in tokenizer.encode_batch(texts)
    ]
    return np.concatenate(parts)


class Windows:
    """Batches of windows of a token stream.

    A window is <bos> and the tokens that follow the start of a top-level line, if one is near.
    """

    def __init__(self, ids: npt.NDArray[np.int64], tokenizer: Tokenizer, seed: int) -> None:
        self._ids = ids
        self._seed = seed
        self.begin(0)
        texts = [tokenizer.id_to_token(token) for token in range(tokenizer.get_vocab_size())]
        ends_line = np.array(
            [token == BOS or text.endswith("Ċ") for token, text in enumerate(texts)]
        )
        is_indented = np.array([text[0] in "ĠĊ" for text in texts])
        top_level = (
            np.flatnonzero(ends_line[ids[:-1]] & ~is_indented[ids[1:]] & (ids[1:] > PAD)) + 1
        )
        following = np.searchsorted(top_level, np.arange(len(ids)))
        self._next_top_level = np.append(top_level, len(ids))[following]

    def begin(self, step: int) -> None:
        """Draw from here on as a run that continues at a step, other windows than at its start."""
        self._random = np.random.default_rng((self._seed, step))
        self._starts: list[int] = []
        self._length = 0

    def batch(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and next tokens, both (rows, length)."""
        if length != self._length:
            self._length, self._starts = length, []
        windows: list[npt.NDArray[np.int64]] = []
        while len(windows) < rows:
            if not self._starts:
                starts = np.arange(
                    self._random.integers(length), len(self._ids) - 2 * length, length
                )
                self._random.shuffle(starts)
                self._starts = starts.tolist()
            start = self._starts.pop()
            snapped = int(self._next_top_level[start])
            if snapped - start < length // 2:
                start = snapped
            window = self._ids[start : start + length]
            if len(window) == length and window[0] != BOS:
                windows.append(np.concatenate([[BOS], window]))
            elif len(window) == length:
                windows.append(self._ids[start : start + length + 1])
        tokens = torch.from_numpy(np.stack(windows))
        return tokens[:, :-1], tokens[:, 1:]


# The model: llama's, with tied embeddings.


@dataclass(frozen=True)
class Shape:
    width: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    rope_base: float = 10000.0
    epsilon: float = 1e-5

    @property
    def head_width(self) -> int:
        return self.width // self.heads


TARGET_SHAPE = Shape(width=512, layers=6, heads=4, kv_heads=2, feed_forward=1536)
DRAFT_SHAPE = Shape(width=384, layers=2, heads=3, kv_heads=1, feed_forward=512)


class Norm(nn.Module):
    """RMSNorm, computed in fp32."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)).to(
            x.dtype
        ) * self.weight


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions on (B, T, heads, head width), halves against each other."""
    first, second = x.chunk(2, -1)
    cosine, sine = cosine[None, :, None].to(x.dtype), sine[None, :, None].to(x.dtype)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, block: int = 256) -> Tensor:
    """Grouped causal attention by blocks of queries.

    (B, T, heads, width) and twice (B, T, kv heads, width) give (B, T, heads * width). Matrix
    products rather than scaled_dot_product_attention, whose bf16 backward pass is slow on CPUs.
    """
    batch, length, heads, width = query.shape
    groups = key.shape[2]
    shared = heads // groups
    keys = key.permute(0, 2, 3, 1).contiguous()
    values = value.transpose(1, 2).contiguous()
    queries = query.view(batch, length, groups, shared, width).permute(0, 2, 3, 1, 4).contiguous()
    outputs = []
    for start in range(0, length, block):
        rows = min(block, length - start)
        end = start + rows
        block_queries = queries[:, :, :, start:end].reshape(batch * groups, shared * rows, width)
        scores = torch.bmm(block_queries, keys[..., :end].reshape(batch * groups, width, end))
        scores = scores.view(batch, groups, shared, rows, end).float() / math.sqrt(width)
        visible = torch.arange(end)[None, :] <= torch.arange(start, end)[:, None]
        weights = torch.softmax(torch.where(visible, scores, -1e30), -1).to(query.dtype)
        mixed = torch.bmm(
            weights.view(batch * groups, shared * rows, end),
            values[:, :, :end].reshape(batch * groups, end, width),
        )
        outputs.append(mixed.view(batch, groups, shared, rows, width))
    return torch.cat(outputs, 3).permute(0, 3, 1, 2, 4).reshape(batch, length, heads * width)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv_width = shape.kv_heads * shape.head_width
        self.attn_norm = Norm(shape.width, shape.epsilon)
        self.ffn_norm = Norm(shape.width, shape.epsilon)
        self.attn_q = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_k = nn.Linear(shape.width, kv_width, bias=False)
        self.attn_v = nn.Linear(shape.width, kv_width, bias=False)
        self.attn_output = nn.Linear(shape.width, shape.width, bias=False)
        self.ffn_gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def heads(self, x: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of x (B, T, width), each (B, T, its heads, head width)."""
        normed = self.attn_norm(x)
        split = (x.shape[0], x.shape[1], -1, self.shape.head_width)
        query, key, value = (
            layer(normed).view(split) for layer in (self.attn_q, self.attn_k, self.attn_v)
        )
        return rotate(query, cosine, sine), rotate(key, cosine, sine), value

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.attn_output(attended)
        normed = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(normed)) * self.ffn_up(normed))

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        return self.finish(x, causal_attention(*self.heads(x, cosine, sine)))


class Transformer(nn.Module):
    """Token ids (B, T) to logits (B, T, vocabulary), with weights in bf16."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(VOCABULARY_SIZE, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = Norm(shape.width, shape.epsilon)
        nn.init.normal_(self.token_embd.weight, std=0.02)
        for name, parameter in self.blk.named_parameters():
            if parameter.ndim == 2:
                residual = name.endswith(("attn_output.weight", "ffn_down.weight"))
                scale = 0.5 / math.sqrt(2 * shape.layers) if residual else 0.5
                nn.init.normal_(parameter, std=scale / math.sqrt(parameter.shape[1]))
        self.bfloat16()
        frequencies = shape.rope_base ** (
            -torch.arange(0, shape.head_width, 2).double() / shape.head_width
        )
        angles = torch.arange(CONTEXT).double()[:, None] * frequencies[None]
        self.register_buffer("cosine", angles.cos().float(), persistent=False)
        self.register_buffer("sine", angles.sin().float(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token_embd(ids)
        length = ids.shape[1]
        for block in self.blk:
            x = block(x, self.cosine[:length], self.sine[:length])
        return self.logits(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(self.output_norm(x), self.token_embd.weight)

    @torch.no_grad()
    def continue_text(self, ids: Tensor, length: int, temperatures: Tensor) -> Tensor:
        """Continue each row of ids (B, T) to `length` tokens at its own temperature (B, 1)."""
        rows, position, shape = ids.shape[0], 0, self.shape
        keys = torch.zeros(
            shape.layers, rows, shape.kv_heads, length, shape.head_width, dtype=torch.bfloat16
        )
        values = torch.zeros_like(keys)
        text, step = ids, ids
        while text.shape[1] < length:
            x = self.token_embd(step)
            end = position + step.shape[1]
            for layer, block in enumerate(self.blk):
                query, key, value = block.heads(
                    x, self.cosine[position:end], self.sine[position:end]
                )
                keys[layer, :, :, position:end] = key.transpose(1, 2)
                values[layer, :, :, position:end] = value.transpose(1, 2)
                if position == 0:
                    attended = causal_attention(query, key, value)
                else:
                    grouped = query.view(rows, shape.kv_heads, -1, shape.head_width)
                    scores = (
                        grouped @ keys[layer, :, :, :end].transpose(-1, -2)
                    ).float() / math.sqrt(shape.head_width)
                    attended = (
                        torch.softmax(scores, -1).bfloat16() @ values[layer, :, :, :end]
                    ).view(rows, 1, -1)
                x = block.finish(x, attended)
            noise = -torch.log(-torch.log(torch.rand(rows, VOCABULARY_SIZE).clamp_(1e-9, 1 - 1e-7)))
            step = (self.logits(x[:, -1]).float() / temperatures + noise).argmax(-1, keepdim=True)
            text = torch.cat([text, step], 1)
            position = end
        return text


# The optimiser.


def orthogonalised(update: Tensor) -> Tensor:
    """Return the nearest semi-orthogonal matrix, nearly: Muon's steps (Jordan et al., 2024)."""
    x = update.bfloat16()
    is_tall = x.shape[0] > x.shape[1]
    if is_tall:
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = torch.addmm(
            x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445
        )
    return x.T if is_tall else x


class Optimizer:
    """Muon for the matrices of the blocks, AdamW for the rest, on fp32 masters of the weights."""

    MUON_RATE, ADAM_RATE, DECAY = 4e-3, 2e-3, 0.1

    def __init__(self, model: Transformer) -> None:
        self.step_count = 0
        self._parameters = dict(model.named_parameters())
        self.masters = {
            name: parameter.detach().float().clone() for name, parameter in self._parameters.items()
        }
        self._momenta = {name: torch.zeros_like(master) for name, master in self.masters.items()}
        self._squares = {
            name: torch.zeros_like(self.masters[name])
            for name in self._parameters
            if not self._is_matrix(name)
        }

    def _is_matrix(self, name: str) -> bool:
        return name.startswith("blk.") and self._parameters[name].ndim == 2

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update at `rate` times the full learning rates; clears the gradients."""
        self.step_count += 1
        norm = math.sqrt(
            sum(
                float(parameter.grad.float().pow(2).sum())
                for parameter in self._parameters.values()
            )
        )
        for name, parameter in self._parameters.items():
            master, momentum, gradient = (
                self.masters[name],
                self._momenta[name],
                parameter.grad.float(),
            )
            if self._is_matrix(name):
                momentum.lerp_(gradient, 0.05)
                update = orthogonalised(gradient.lerp(momentum, 0.95)).float()
                pace = self.MUON_RATE * rate
                master.mul_(1 - pace * self.DECAY).sub_(
                    update, alpha=pace * 0.2 * math.sqrt(max(update.shape))
                )
            else:
                gradient = gradient * min(1.0, 1.0 / (norm + 1e-6))
                momentum.lerp_(gradient, 0.1)
                squares = self._squares[name].mul_(0.95).addcmul_(gradient, gradient, value=0.05)
                corrected = (squares / (1 - 0.95**self.step_count)).sqrt_().add_(1e-8)
                master.addcdiv_(
                    momentum / (1 - 0.9**self.step_count), corrected, value=-self.ADAM_RATE * rate
                )
            parameter.copy_(master)
            parameter.grad = None

    def state(self) -> dict[str, object]:
        return {
            "step": self.step_count,
            "masters": self.masters,
            "momenta": self._momenta,
            "squares": self._squares,
        }

    @torch.no_grad()
    def restore(self, state: dict[str, object]) -> None:
        self.step_count = state["step"]
        self.masters, self._momenta, self._squares = (
            state["masters"],
            state["momenta"],
            state["squares"],
        )
        for name, parameter in self._parameters.items():
            parameter.copy_(self.masters[name])


def pace(step: int, steps: int, flat: float) -> float:
    """The learning rate's factor: forty steps of warm-up, full until `flat`, then linear to 2 %."""
    done = step / steps
    return min(1.0, (step + 1) / 40) * (
        1.0 if done < flat else 0.02 + 0.98 * (1 - done) / (1 - flat)
    )


# Training.


class Run:
    """One model's training: its checkpoint, and a line of progress now and then."""

    def __init__(self, name: str, model: Transformer, steps: int, folder: Path) -> None:
        self.name, self.model, self.steps = name, model, steps
        self.optimizer = Optimizer(model)
        self._checkpoint = folder / f"{name}.pt"
        self._started = time.monotonic()
        self._smooth: dict[str, float] = {}
        if self._checkpoint.exists():
            self.optimizer.restore(torch.load(self._checkpoint))
            print(f"{name}: continuing from step {self.optimizer.step_count}", flush=True)

    def remaining(self) -> Iterator[int]:
        """The steps still to do. Saves a checkpoint every hundred of them and at the end."""
        first = self.optimizer.step_count
        for step in range(first, self.steps):
            yield step
            if (step + 1) % 100 == 0 or step + 1 == self.steps:
                torch.save(self.optimizer.state(), self._checkpoint.with_suffix(".part"))
                os.replace(self._checkpoint.with_suffix(".part"), self._checkpoint)
            if (step + 1) % 25 == 0:
                pace_s = (time.monotonic() - self._started) / (step + 1 - first)
                figures = "  ".join(f"{key} {value:.4f}" for key, value in self._smooth.items())
                print(
                    f"{self.name}: step {step + 1}/{self.steps}  {pace_s:.2f} s a step  {figures}",
                    flush=True,
                )

    def note(self, **figures: float) -> None:
        """Figures of this step, shown as running means."""
        for key, value in figures.items():
            self._smooth[key] = 0.95 * self._smooth.get(key, value) + 0.05 * value


def train_target(train: Windows, held_out: Windows, steps: int, folder: Path) -> Transformer:
    """Train on next tokens: windows of 512, for the last 15 % of the steps of 1024."""
    model = Transformer(TARGET_SHAPE)
    run = Run("target", model, steps, folder)
    loss_of: Callable[[Tensor, Tensor], Tensor] = torch.compile(
        lambda ids, following: F.cross_entropy(
            model(ids).float().flatten(0, 1), following.flatten()
        ),
        dynamic=False,
    )
    train.begin(run.optimizer.step_count)
    for step in run.remaining():
        length = 512 if step < 0.85 * steps else CONTEXT
        loss = loss_of(*train.batch(TOKENS_PER_STEP // length, length))
        loss.backward()
        run.optimizer.step(pace(step, steps, flat=0.45))
        run.note(loss=loss.item())
    with torch.no_grad():
        losses = [
            loss_of(*held_out.batch(TOKENS_PER_STEP // CONTEXT, CONTEXT)).item()
            for _ in range(HELD_OUT_BATCHES)
        ]
    print(f"target: held-out loss {np.mean(losses):.3f} nats per token", flush=True)
    return model


def texts_of(target: Transformer, train: Windows, rounds: int, file: Path) -> Tensor:
    """Texts by the target itself, (128 * rounds, 513): it continues 32 tokens of the corpus."""
    if file.exists():
        return torch.load(file)
    temperatures = torch.tensor([OWN_TEMPERATURES[row % 4] for row in range(128)])[:, None]
    started, texts = time.monotonic(), []
    for done in range(rounds):
        prompts, _ = train.batch(128, 48)
        texts.append(target.continue_text(prompts[:, :32], 513, temperatures))
        seconds = time.monotonic() - started
        print(f"draft: {done + 1}/{rounds} rounds of own text, {seconds:.0f} s", flush=True)
    torch.save(torch.cat(texts), file)
    return torch.cat(texts)


@dataclass(frozen=True)
class Lessons:
    """What the target says along texts, for the draft to learn.

    The texts (N, 512), and after each of their tokens the target's TOP likeliest tokens with
    their log probabilities, both (N, 512, TOP) and best first.
    """

    ids: Tensor
    tokens: Tensor
    logs: Tensor

    def some(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The lessons of these texts, as the draft's training takes them."""
        return self.ids[rows].long(), self.tokens[rows].long(), self.logs[rows].float()


def lessons_of(target: Transformer, texts: Callable[[], Tensor], file: Path) -> Lessons:
    """Ask the target once for all the distributions along texts (N, 513); later, read the file."""
    if not file.exists():

        @torch.compile(dynamic=False)
        def top_logs(ids: Tensor) -> tuple[Tensor, Tensor]:
            return torch.log_softmax(target(ids).float(), -1).topk(TOP)

        ids, answers, started = texts()[:, :-1], [], time.monotonic()
        with torch.no_grad():
            for rows in ids.split(8):
                logs, tokens = top_logs(rows)
                answers.append((tokens.short(), logs.half()))
        tokens, logs = (torch.cat(part) for part in zip(*answers, strict=True))
        torch.save((ids.short(), tokens, logs), file)
        print(f"draft: {file.stem}, {time.monotonic() - started:.0f} s", flush=True)
    return Lessons(*torch.load(file))


def distances(draft_logits: Tensor, tokens: Tensor, logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """KL divergence from the target, sum min(p, q) and greedy agreement, means over positions.

    `logits` (B, T, vocabulary), the others (B, T, TOP) as in Lessons. The tokens beyond the top
    count as one in the divergence and not at all in the overlap.
    """
    draft_logits = draft_logits.float()
    q_logs = draft_logits.gather(-1, tokens) - draft_logits.logsumexp(-1, keepdim=True)
    p, q = logs.exp(), q_logs.exp()
    p_rest, q_rest = ((1 - part.sum(-1)).clamp(min=1e-6) for part in (p, q))
    divergence = (p * (logs - q_logs)).sum(-1) + p_rest * (p_rest / q_rest).log()
    overlap = torch.minimum(p, q).sum(-1)
    agreement = (draft_logits.argmax(-1) == tokens[..., 0]).float()
    return divergence.mean(), overlap.mean(), agreement.mean()


def train_draft(
    target: Transformer, train: Windows, held_out: Windows, steps: int, folder: Path
) -> Transformer:
    """Train on KL divergence, then on 0.3 KL + 1.5 total variation and on own text by half."""
    target.requires_grad_(requires_grad=False)

    def windows(source: Windows, count: int) -> Tensor:
        source.begin(0)
        ids, following = source.batch(count, 512)
        return torch.cat([ids, following[:, -1:]], 1)

    texts = windows(train, LESSON_PARTS * LESSON_WINDOWS).split(LESSON_WINDOWS)
    taught = [
        lessons_of(target, partial(texts.__getitem__, part), folder / f"lessons-{part}.pt")
        for part in range(LESSON_PARTS)
    ]
    own = lessons_of(
        target,
        lambda: texts_of(target, train, OWN_TEXT_ROUNDS, folder / "own-texts.pt"),
        folder / "lessons-own.pt",
    )
    check = lessons_of(
        target, lambda: windows(held_out, HELD_OUT_WINDOWS), folder / "lessons-held-out.pt"
    )

    model = Transformer(DRAFT_SHAPE)
    embeddings = target.token_embd.weight.float()
    rotation = torch.linalg.svd(embeddings, full_matrices=False)[2].T
    with torch.no_grad():
        model.token_embd.weight.copy_((embeddings @ rotation)[:, : DRAFT_SHAPE.width])
    run = Run("draft", model, steps, folder)
    distances_of = torch.compile(
        lambda ids, tokens, logs: distances(model(ids), tokens, logs), dynamic=False
    )
    random = torch.Generator().manual_seed(5 + run.optimizer.step_count)
    for step in run.remaining():
        is_late = step > 0.6 * steps
        part = own if is_late and step % 2 == 0 else taught[step % LESSON_PARTS]
        rows = torch.randint(len(part.ids), (8,), generator=random)
        divergence, overlap, agreement = distances_of(*part.some(rows))
        loss = 0.3 * divergence + 1.5 * (1 - overlap) if is_late else divergence
        loss.backward()
        run.optimizer.step(pace(step, steps, flat=0.4))
        run.note(overlap=overlap.item(), agreement=agreement.item())
    with torch.no_grad():
        figures = [
            [value.item() for value in distances_of(*check.some(rows))]
            for rows in torch.arange(len(check.ids)).split(8)
        ]
    divergence, overlap, agreement = np.mean(figures, axis=0)
    print(
        f"draft: held-out KL {divergence:.3f}, sum min(p, q) {overlap:.3f}, "
        f"greedy agreement {agreement:.3f}",
        flush=True,
    )
    return model


# Export.


def write_gguf(model: Transformer, tokenizer: Tokenizer, name: str, file: Path) -> None:
    """The model in Q8_0 with its tokenizer, as llama.cpp reads it."""
    shape = model.shape
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name(name)
    writer.add_license("PSF-2.0")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(VOCABULARY_SIZE)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    described = json.loads(tokenizer.to_str())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokenizer.id_to_token(token) for token in range(VOCABULARY_SIZE)])
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types(
        [control] * len(SPECIAL_TOKENS) + [normal] * (VOCABULARY_SIZE - len(SPECIAL_TOKENS))
    )
    writer.add_token_merges([" ".join(merge) for merge in described["merges"]])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_pad_token_id(PAD)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)

    def interleaved(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
        """Rows from half against half to llama.cpp's pairs of neighbours."""
        return (
            weight.reshape(heads, 2, shape.head_width // 2, -1).swapaxes(1, 2).reshape(weight.shape)
        )

    for parameter_name, parameter in model.named_parameters():
        weight = parameter.detach().float().numpy()
        if parameter_name.endswith("attn_q.weight"):
            weight = interleaved(weight, shape.heads)
        if parameter_name.endswith("attn_k.weight"):
            weight = interleaved(weight, shape.kv_heads)
        if weight.ndim == 1:
            writer.add_tensor(parameter_name, weight)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(
                parameter_name,
                gguf.quants.quantize(np.ascontiguousarray(weight), kind),
                raw_dtype=kind,
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--library", type=Path, default=LIBRARY, help="the Python sources to learn from"
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for the tokenizer and the checkpoints"
    )
    parser.add_argument(
        "--out", type=Path, help="folder for the GGUF files; the work folder unless given"
    )
    parser.add_argument("--target-steps", type=int, default=1150, help="of 8192 tokens each")
    parser.add_argument("--draft-steps", type=int, default=3000, help="of 4096 tokens each")
    options = parser.parse_args()
    if os.environ.get("OMP_WAIT_POLICY") != "passive":
        print(
            "train: without OMP_WAIT_POLICY=passive a step on CPUs takes several times as long",
            flush=True,
        )
    options.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)

    files = list(sources(options.library))
    parts = {
        held: [text for name, text in files if is_held_out(name) is held] for held in (False, True)
    }
    tokenizer_file = options.work / "tokenizer.json"
    if not tokenizer_file.exists():
        train_tokenizer(parts[False]).save(str(tokenizer_file))
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    ids = {held: encode(tokenizer, texts) for held, texts in parts.items()}
    print(
        f"corpus: {len(parts[False])} files, {len(ids[False]) / 1e6:.2f} million tokens; "
        f"held out: {len(parts[True])} files, {len(ids[True])} tokens, "
        f"{sum(len(text.encode()) for text in parts[True]) / len(ids[True]):.2f} bytes a token",
        flush=True,
    )
    train, held_out = Windows(ids[False], tokenizer, seed=3), Windows(ids[True], tokenizer, seed=7)
    target = train_target(train, held_out, options.target_steps, options.work)
    draft = train_draft(target, train, held_out, options.draft_steps, options.work)
    out = options.out or options.work
    write_gguf(target, tokenizer, "Outrider stdlib target", out / "stdlib-target-q8_0.gguf")
    write_gguf(draft, tokenizer, "Outrider stdlib draft", out / "stdlib-draft-q8_0.gguf")


if __name__ == "__main__":
    main()
