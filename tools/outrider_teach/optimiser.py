"""Muon for the matrices of a student, AdamW for the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

MUON_RATE, ADAM_RATE = 1e-2, 1e-3
DECAY = 0.01
_WARM_UP = 40  # steps
_LAST = 0.02  # of the rate, at the end
_ITERATIONS = 5  # of Newton and Schulz, as in Muon (Jordan et al., 2024)


def pace(step: int, steps: int) -> float:
    """Return what the rates are multiplied with at a step: a warm-up, then half a cosine."""
    done = step / max(1, steps)
    falling = _LAST + (1 - _LAST) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return min(1.0, (step + 1) / _WARM_UP) * falling


class Optimiser:
    """Steps of a student's weights by their gradients."""

    def __init__(self, student: nn.Module, rate: float = 1.0) -> None:
        self.step_count = 0
        self._rate = rate
        self._parameters = {n: p for n, p in student.named_parameters() if p.requires_grad}
        self._momenta = {n: torch.zeros_like(p) for n, p in self._parameters.items()}
        self._squares = {
            n: torch.zeros_like(p) for n, p in self._parameters.items() if not _is_turned(n, p)
        }

    @torch.no_grad()
    def step(self, pace: float) -> None:
        """Update the weights, at a part of the rates, and clear the gradients."""
        self.step_count += 1
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
        for name, parameter in self._parameters.items():
            assert parameter.grad is not None, name
            if name in self._squares:
                self._adam(name, parameter, parameter.grad * scale, pace * self._rate)
            else:
                self._muon(name, parameter, parameter.grad, pace * self._rate)
            parameter.grad = None

    def _muon(self, name: str, parameter: Tensor, gradient: Tensor, pace: float) -> None:
        momentum = self._momenta[name].lerp_(gradient, 0.05)
        update = orthogonalised(gradient.lerp(momentum, 0.95))
        rate = MUON_RATE * pace
        size = 0.2 * math.sqrt(max(update.shape))  # of updates as AdamW's (Moonlight, 2025)
        parameter.mul_(1 - rate * DECAY).sub_(update.to(parameter.dtype), alpha=rate * size)

    def _adam(self, name: str, parameter: Tensor, gradient: Tensor, pace: float) -> None:
        momentum = self._momenta[name].lerp_(gradient, 0.1)
        squares = self._squares[name].mul_(0.95).addcmul_(gradient, gradient, value=0.05)
        root = (squares / (1 - 0.95**self.step_count)).sqrt_().add_(1e-8)
        rate = ADAM_RATE * pace
        if parameter.ndim > 1:
            parameter.mul_(1 - rate * DECAY)
        parameter.addcdiv_(momentum / (1 - 0.9**self.step_count), root, value=-rate)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has of it."""
        return {"step": self.step_count, "momenta": self._momenta, "squares": self._squares}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's."""
        self.step_count = state["step"]
        for own, saved in ((self._momenta, "momenta"), (self._squares, "squares")):
            for name, tensor in own.items():
                tensor.copy_(state[saved][name])


def _is_turned(name: str, parameter: Tensor) -> bool:
    """Return whether Muon takes it: matrices between rows, but no matrix of tokens."""
    return parameter.ndim == 2 and not name.startswith("output.")


def orthogonalised(update: Tensor) -> Tensor:
    """Return the nearest semi-orthogonal matrix, nearly."""
    x = update.bfloat16() if update.is_cuda else update
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(
            x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445
        )
    return x.T if is_tall else x
