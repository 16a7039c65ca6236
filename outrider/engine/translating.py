"""A hosted model's vocabulary, as a translation takes it, and how much of it another one shares."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.distribution import softmax
from outrider.engine.model import MAX_ROWS_OUT, Chunk, Model, Row
from outrider.handshake import FIRST_COMPARED_ID
from outrider.messages import VOCABULARY_SLACK
from outrider.translation import TokenTable, Translation

SAMPLE = b"""The road was clear, so the outrider rode ahead of the carriage and looked around.

def read_lines(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return [line.rstrip() for line in file if not line.startswith("#")]

It is 9:45 on 3 May 2024; who knows? "Nobody," she said (and left).
"""
"""On what the mass of shared tokens is measured: prose, code, numbers."""

_MEASURED_TOKENS = 96


def table_of(model: Model) -> TokenTable:
    """Return the vocabulary of a model."""
    its = model.describe().vocabulary
    return TokenTable(
        texts=model.token_texts(),
        names=model.token_names(),
        type=its.type,
        bos=its.bos,
        eos=its.eos,
        eot=its.eot,
        adds_bos=its.adds_bos,
        end_token_ids=its.end_token_ids,
    )


def translation_to(draft: Model, target: TokenTable) -> Translation:
    """Return the translation from a model's tokens to a target's."""
    return Translation(table_of(draft), target)


def needed_translation(draft: Model, target: Model) -> Translation | None:
    """Return the translation between two models; None where both have the same ids."""
    mine, its = table_of(draft), table_of(target)
    count = min(len(mine.names), len(its.names))
    is_same = (
        (mine.type, mine.bos, mine.eos, mine.eot) == (its.type, its.bos, its.eos, its.eot)
        and mine.adds_bos == its.adds_bos
        and abs(len(mine.names) - len(its.names)) <= VOCABULARY_SLACK
        and mine.names[FIRST_COMPARED_ID:count] == its.names[FIRST_COMPARED_ID:count]
    )
    return None if is_same else Translation(mine, its)


def sample_ids(model: Model) -> list[int]:
    """Return the sample in a model's tokens, as much of it as is measured in one decode."""
    description = model.describe()
    count = min(_MEASURED_TOKENS, MAX_ROWS_OUT // 2, description.context // 2)
    ids = model.tokenize(SAMPLE, True, False)
    return ids[: min(count, description.batch_rows // 2)]


def mean_shared_mass(translation: Translation, rows: Iterable[Row]) -> float:
    """Return the share of the probability mass that shared tokens have, on average of rows."""
    masses = []
    for row in rows:
        q = softmax(row)
        masses.append(translation.shared_mass(q.weights / q.total))
    return sum(masses) / len(masses)


def shared_mass(draft: Model, translation: Translation) -> float:
    """Return the same of a model that nobody else uses; sequence 0 is used and left empty."""
    if not translation.shared_count:
        return 0.0
    ids = sample_ids(draft)
    draft.truncate(0, 0)
    [rows] = draft.decode([Chunk(0, 0, ids, len(ids))])
    mass = mean_shared_mass(translation, rows)
    draft.truncate(0, 0)
    return mass
