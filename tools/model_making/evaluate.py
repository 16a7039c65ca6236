"""Measures the bundled pair on source files that neither model has seen; the figures of its card.

    make pair-card

Both models run in llama.cpp, through Outrider's own engine and samplers. The
held-out files are those of the standard library at hand, so another Python
gives slightly other figures.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model_making.corpus import LIBRARY, is_held_out, sources
from outrider.core import acceptance
from outrider.distribution import Distribution, distribution_of
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk
from outrider.sampling import SamplingParameters
from outrider.threads import available_threads

MODELS = Path(__file__).resolve().parents[2] / "models"
WINDOW = 512
PROMPT, GENERATED = 64, 128
DRAFT_LENGTH = 4
SAMPLING = SamplingParameters(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0)

Rows = NDArray[np.float32]


def load(path: Path) -> LlamaModel:
    """Return a model with one session."""
    return LlamaModel(
        LlamaConfig(
            path=path,
            context=1024,
            sequence_count=1,
            thread_count=available_threads(),
            pad_multiple=4,
        )
    )


def rows_of(model: LlamaModel, ids: Sequence[int], start: int = 0) -> Rows:
    """Return the logits after every token from `start` on, decoded anew."""
    model.truncate(0, start)
    rows: list[Rows] = []
    for at in range(start, len(ids), 64):
        piece = list(ids[at : at + 64])
        rows += [row.copy() for row in model.decode([Chunk(0, at, piece, len(piece))])[0]]
    return np.stack(rows)


def log_softmax(rows: Rows) -> NDArray[np.float64]:
    """Return log probabilities by row."""
    wide = rows.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


@dataclass(slots=True)
class OnText:
    """What the models say along held-out text, position by position."""

    losses: dict[str, list[float]] = field(default_factory=lambda: {"target": [], "draft": []})
    agree: list[float] = field(default_factory=list)
    overlap: list[float] = field(default_factory=list)

    def add(self, ids: Sequence[int], target: Rows, draft: Rows) -> None:
        """Take in a window: ids[i + 1] is what row i should say."""
        following = np.asarray(ids[1:])
        for name, rows in (("target", target), ("draft", draft)):
            logs = log_softmax(rows[:-1])
            self.losses[name] += (-logs[np.arange(len(following)), following]).tolist()
        self.agree += (target[:-1].argmax(1) == draft[:-1].argmax(1)).tolist()
        for p_row, q_row in zip(target[:-1:8], draft[:-1:8], strict=True):
            self.overlap.append(
                shared_mass(distribution_of(p_row, SAMPLING), distribution_of(q_row, SAMPLING))
            )


def shared_mass(p: Distribution, q: Distribution) -> float:
    """Return sum min(p, q), the best acceptance that any rule can have (Leviathan et al.)."""
    size = int(max(p.token_ids.max(), q.token_ids.max())) + 1
    both = np.zeros((2, size))
    both[0, p.token_ids], both[1, q.token_ids] = p.weights / p.total, q.weights / q.total
    return float(both.min(axis=0).sum())


@dataclass(slots=True)
class OnOwnText:
    """Serial speculation along text that the target writes itself."""

    drafted: int = 0
    accepted: int = 0
    agree: list[bool] = field(default_factory=list)
    rounds: int = 0
    tokens: int = 0

    def add(self, target: LlamaModel, draft: LlamaModel, prompt: list[int], greedy: bool) -> None:
        """Write on from a prompt and count what rounds of DRAFT_LENGTH would have accepted."""
        text = write(target, prompt, GENERATED, greedy, seed=len(self.agree))
        its_rows = rows_of(draft, text)
        count, at = len(prompt), len(prompt)
        own = [self._guess(row, position, greedy) for position, row in enumerate(its_rows)]
        self.agree += [own[i - 1] == text[i] for i in range(count, len(text))]
        while at < len(text):
            guesses = [own[i - 1] for i in range(at, min(at + DRAFT_LENGTH, len(text)))]
            verdict = acceptance.match(guesses, [*text[at : at + len(guesses)], -1])
            self.drafted += len(guesses)
            self.accepted += verdict.accepted_count
            self.rounds += 1
            gained = min(verdict.accepted_count + 1, len(text) - at)
            self.tokens += gained
            at += gained

    @staticmethod
    def _guess(row: Rows, position: int, greedy: bool) -> int:
        """Return the draft's token at the position after a row."""
        if greedy:
            return int(row.argmax())
        return distribution_of(row, SAMPLING).race(1, 0, position + 1)[0]


def write(model: LlamaModel, prompt: list[int], count: int, greedy: bool, seed: int) -> list[int]:
    """Return the prompt and `count` more tokens; above temperature 0 by shared noise."""
    text = list(prompt)
    row = rows_of(model, text)[-1]
    for _ in range(count):
        text.append(
            int(row.argmax()) if greedy else distribution_of(row, SAMPLING).race(1, 0, len(text))[0]
        )
        row = model.decode([Chunk(0, len(text) - 1, text[-1:], 1)])[0][0].copy()
    return text


def windows(model: LlamaModel, texts: Sequence[str], count: int) -> Iterator[list[int]]:
    """Yield `count` windows, spread evenly over the held-out text."""
    ids = [i for text in texts for i in model.tokenize(text.encode(), False, False)]
    bos = model.describe().vocabulary.bos
    assert bos is not None
    for i in range(count):
        start = i * (len(ids) - WINDOW) // max(1, count - 1)
        yield [bos, *ids[start : start + WINDOW - 1]]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=MODELS / "stdlib-target-q8_0.gguf")
    parser.add_argument("--draft", type=Path, default=MODELS / "stdlib-draft-q8_0.gguf")
    parser.add_argument("--library", type=Path, default=LIBRARY)
    parser.add_argument("--windows", type=int, default=60, help="of 512 tokens each")
    parser.add_argument("--texts", type=int, default=20, help="of 128 generated tokens each")
    options = parser.parse_args()
    texts = [text for name, text in sources(options.library) if is_held_out(name)]
    if not texts:
        raise SystemExit(f"evaluate: no held-out file in {options.library}")
    target, draft = load(options.target), load(options.draft)
    for name, path, model in (
        ("target", options.target, target),
        ("draft", options.draft, draft),
    ):
        million = model.describe().parameter_count / 1e6
        print(f"{name}: {million:.1f} million parameters, {path.stat().st_size / 1e6:.1f} MB")

    on_text = OnText()
    for ids in windows(target, texts, options.windows):
        on_text.add(ids, rows_of(target, ids), rows_of(draft, ids))
    size = len("".join(texts).encode())
    tokens = sum(len(target.tokenize(text.encode(), False, False)) for text in texts)
    print(f"held out: {len(texts)} files, {tokens} tokens, {size / tokens:.2f} bytes a token")
    for name, losses in on_text.losses.items():
        nats = float(np.mean(losses))
        bits = nats / math.log(2) * tokens / size
        print(f"{name}: loss {nats:.3f} nats a token, {bits:.3f} bits a byte")
    print(f"greedy agreement on held-out code: {np.mean(on_text.agree):.3f}")
    print(f"sum min(p, q) on held-out code at temperature 0.8: {np.mean(on_text.overlap):.3f}")

    for greedy, title in ((True, "temperature 0"), (False, "temperature 0.8, shared noise")):
        own = OnOwnText()
        for ids in windows(target, texts, options.texts):
            own.add(target, draft, ids[:PROMPT], greedy)
        print(
            f"on the target's own text, {title}: agreement {np.mean(own.agree):.3f}, "
            f"acceptance rate at draft length {DRAFT_LENGTH} {own.accepted / own.drafted:.3f}, "
            f"{own.tokens / own.rounds:.2f} tokens a round"
        )


if __name__ == "__main__":
    main()
