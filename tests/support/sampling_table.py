"""A table of sampling parameters in which every two settings of different options meet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from outrider.sampling import DEFAULT_STAGES, SamplingParameters, Stage

JSON_GRAMMAR = r"""
root   ::= object
value  ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}"
array  ::= "[" ws (value ("," ws value)*)? "]"
string ::= "\"" [a-z ]* "\""
number ::= "-"? [0-9] [0-9]?
ws     ::= " "?
"""
LETTERS = 'root ::= [a-z ]+ "."'

OPTIONS: dict[str, Sequence[dict[str, Any]]] = {
    "temperature": [
        {"temperature": 0.8},
        {"temperature": 0.0},
        {"temperature": 1.3, "dynatemp_range": 0.7, "dynatemp_exponent": 1.5},
    ],
    "top_k": [{"top_k": 0}, {"top_k": 7}, {"top_k": 40}],
    "top_p": [{"top_p": 1.0}, {"top_p": 0.8}],
    "min_p": [{"min_p": 0.0}, {"min_p": 0.1}],
    "typical_p": [{}, {"typical_p": 0.7}],
    "top_n_sigma": [{}, {"top_n_sigma": 1.5}],
    "tfs_z": [{}, {"tfs_z": 0.9}],
    "xtc": [{}, {"xtc_probability": 0.5, "xtc_threshold": 0.08}],
    "min_keep": [{}, {"min_keep": 4}],
    "penalties": [
        {},
        {"repeat_penalty": 1.3, "repeat_last_n": 12},
        {"frequency_penalty": 0.6, "presence_penalty": -0.4, "repeat_last_n": -1},
        {"repeat_penalty": 1.5, "penalize_newline": False},
    ],
    "dry": [{}, {"dry_multiplier": 1.2, "dry_allowed_length": 1}],
    "mirostat": [{}, {}, {}, {"mirostat": 1, "mirostat_tau": 3.0}, {"mirostat": 2}],
    "logit_bias": [{}, {"logit_bias": ((70, 2.5), (71, -3.0), (260, -math.inf))}],
    "grammar": [{}, {"grammar": LETTERS}, {"grammar": JSON_GRAMMAR}],
    "stages": [
        {},
        {"stages": tuple(reversed(DEFAULT_STAGES))},
        {"stages": (Stage.TEMPERATURE, *(s for s in Stage if s is not Stage.TEMPERATURE))},
    ],
}


def pairwise(seed: int = 1, tries: int = 60) -> list[SamplingParameters]:
    """Return parameters of which every two settings of two options meet in one at least."""
    names = list(OPTIONS)
    missing = {
        (a, i, b, j)
        for a, b in itertools.combinations(names, 2)
        for i in range(len(OPTIONS[a]))
        for j in range(len(OPTIONS[b]))
    }
    random = np.random.default_rng(seed)
    table = []
    while missing:
        rows = [
            {name: int(random.integers(len(OPTIONS[name]))) for name in names} for _ in range(tries)
        ]
        best = max(rows, key=lambda row: len(_met(row) & missing))
        if _met(best) & missing:
            missing -= _met(best)
            table.append(_parameters(best))
    return table


def _met(row: dict[str, int]) -> set[tuple[str, int, str, int]]:
    return {(a, row[a], b, row[b]) for a, b in itertools.combinations(row, 2)}


def _parameters(row: dict[str, int]) -> SamplingParameters:
    options: dict[str, Any] = {}
    for name, index in row.items():
        options |= OPTIONS[name][index]
    return SamplingParameters(**options)
