"""Counter-based noise: the same numbers at every place that knows the seed, in any order.

Noise v1 is normative; its test vectors are in tests/unit/test_noise.py. A
stream of shared noise is a choice index, below 2**32. The rejection rule's
draws live on streams above, one per purpose, so that no draw is ever shared
between the draft, the coin and the residual.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_SEED = 0x9E3779B97F4A7C15
_TOKEN = 0xD1342543DE82EF95
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB

_BELOW_ONE = 1.0 - 2.0**-53
"""The highest hash plus a half rounds up to 1, which no logarithm of a logarithm survives."""


_ONE, _TOKEN_64, _MIX_A_64, _MIX_B_64 = map(np.uint64, (1, _TOKEN, _MIX_A, _MIX_B))
_SHIFT_11, _SHIFT_27, _SHIFT_30, _SHIFT_31 = map(np.uint64, (11, 27, 30, 31))


class Purpose(IntEnum):
    """What a draw decides, beside the races of shared noise."""

    DRAFT = 1  # under the rejection rule, as the next two
    ACCEPT = 2
    NEXT = 3
    XTC = 4  # whether top choices are excluded at a position


def _mix(x: int) -> int:
    """The finaliser of splitmix64."""
    x = ((x ^ (x >> 30)) * _MIX_A) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_B) & _MASK
    return x ^ (x >> 31)


def position_key(seed: int, stream: int, position: int) -> np.uint64:
    """Return what keys the numbers of a stream at a position."""
    return np.uint64(_position_key(seed, stream, position))


def _position_key(seed: int, stream: int, position: int) -> int:
    key = _mix(_mix((seed + _SEED) & _MASK) ^ (stream & _MASK))
    return _mix((key + position * _SEED) & _MASK)


def uniforms(
    keys: np.uint64 | NDArray[np.uint64], token_ids: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Return one number in (0, 1) per token id, of its position's key: float64[len(token_ids)]."""
    # In place: for a whole vocabulary new memory costs more than the arithmetic.
    z = token_ids.astype(np.uint64)
    z += _ONE
    z *= _TOKEN_64
    z += keys
    z ^= z >> _SHIFT_30
    z *= _MIX_A_64
    z ^= z >> _SHIFT_27
    z *= _MIX_B_64
    z ^= z >> _SHIFT_31
    z >>= _SHIFT_11
    u = z.astype(np.float64)
    u += 0.5
    u *= 2.0**-53
    return np.minimum(u, _BELOW_ONE, out=u)


def uniform(seed: int, choice: int, purpose: Purpose, first: int, position: int) -> float:
    """Return the rejection rule's number in (0, 1) for one decision.

    `first` is the round's first undecided position and `position` the one
    that the number decides about: keyed by position alone, a position that is
    drafted again after a rejection would meet its old draws.
    """
    key = _position_key(seed, (int(purpose) << 32) | choice, first)
    z = _mix((key + (position + 1) * _TOKEN) & _MASK)
    return min(((z >> 11) + 0.5) * 2.0**-53, _BELOW_ONE)


def draft_seed(seed: int) -> int:
    """Return the seed that a draft draws with under the rejection rule, as a signed 64-bit number.

    It does not lead back to the request's seed, which keys the coins: a draft that knew those
    could propose what they are going to accept.
    """
    digest = hashlib.blake2b(
        (seed & _MASK).to_bytes(8, "little"), digest_size=8, person=b"outrider-draft"
    ).digest()
    return int.from_bytes(digest, "little", signed=True)
