"""The process that `doctor` sends ahead, because a bad build of llama.cpp takes its process along.

It reads what to try as JSON from standard input and writes one JSON object per
line: before each step, and for what was found. After a death the last line
says in which step it happened.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from outrider import handshake
from outrider.costs import RejectionCost
from outrider.engine.calibrate import (
    can_be_exact,
    decode_costs,
    exact_padding,
    history,
    rejection_cost,
)
from outrider.engine.model import Chunk, Model, Numerics, Rollback
from outrider.engine.profile import Costs, choose, padded_costs, plain_costs
from outrider.engine.translating import needed_translation
from outrider.errors import DecodeFailed, InvalidConfig, OutriderError, VocabularyMismatch
from outrider.model_service.config import ModelConfig
from outrider.model_service.run import choose_kernels, llama_config, load_llama, open_own_head
from outrider.model_service.servicer import describe_vocabulary
from outrider.speculation import HeadKind
from outrider.translation import TokenTable, Translation
from outrider.v1 import common_pb2 as common
from outrider.vocabularies import compare
from outrider.vocabulary_pieces import PeerVocabulary, token_table
from outrider_cli.doctor.checks import TrialStep
from outrider_cli.doctor.expected import costs_of, expect, expect_without_target

if TYPE_CHECKING:
    from outrider.engine.llama_loading import FileVocabulary

SEVERAL = 32
"""Tokens at once: the kernels that break are those for several rows."""

_CONTEXT = 512  # past the 256 cells where careless batching shows, and cheap


def main() -> None:
    """Try what standard input says."""
    order = json.load(sys.stdin)
    try:
        _tell_library()
        translation: Translation | None = None
        configs = {role: _config(values) for role, values in order["hosted"].items()}
        pair = {role: _read(role, config.model) for role, config in configs.items()}
        if len(pair) == 2 and all(pair.values()):
            translation = _tell_pair(pair["target"], pair["draft"])
        read = {role: configs[role] for role, found in pair.items() if found}
        head = _config(order["head"]) if order["head"] else None
        _tell_footprints(read, head)
        # A model that cannot be read says nothing about the build.
        trials = [trial for trial in order["trials"] if pair.get(trial["role"], ()) is not None]
        if trials:
            _tell_kernels(trials)
            profile = _try(**trials[0], head=head)
            _tell_expected(order["together"], translation, profile is Numerics.NATIVE)
        _begin(TrialStep.DONE)
    except (OutriderError, ImportError, OSError, RuntimeError) as error:
        _print(failure=str(error))


def try_decode(path: Path) -> None:
    """Decode with the model at `path`. Raises OutriderError; a bad build dies by a signal."""
    model = _load(ModelConfig(model=path))
    decode_several(model)
    decode_one(model)
    model.close()


def decode_several(model: Model) -> None:
    """Decode several tokens at once. Raises DecodeFailed."""
    _decode(model, history(model, SEVERAL))


def decode_one(model: Model) -> None:
    """Decode one token, not padded to several. Raises DecodeFailed."""
    padding, model.pad_multiple = model.pad_multiple, 1
    _decode(model, history(model, 1))
    model.pad_multiple = padding


def _decode(model: Model, token_ids: Sequence[int]) -> None:
    model.truncate(0, 0)
    rows = model.decode([Chunk(0, 0, token_ids, len(token_ids))])[0]
    if not all(np.isfinite(row).all() for row in rows):
        raise DecodeFailed("the logits are not numbers")
    model.truncate(0, 0)


def _load(config: ModelConfig) -> Model:
    """Load a model in the way that a service would, with little room for texts."""
    return load_llama(_lightened(config))()


def _lightened(config: ModelConfig) -> ModelConfig:
    context = min(config.context or _CONTEXT, _CONTEXT)
    return replace(config, context=context, sessions=2, mlock=False, nice=0)


# --- the steps ---


def _tell_library() -> None:
    _begin(TrialStep.IMPORT)
    from outrider.engine.llama_devices import gpus
    from outrider.engine.llama_heads import missing_functions
    from outrider.engine.llama_library import (
        gpu_fault,
        has_untried_amx,
        offloads,
        system_info,
        unused_features,
    )

    _print(system_info=system_info(), offloads=offloads(), gpu_fault=gpu_fault())
    _print(gpus=[asdict(gpu) for gpu in gpus()])
    _print(unused=unused_features(), untried_amx=has_untried_amx())
    _print(missing={kind.value: missing_functions(kind) for kind in HeadKind})


def _tell_footprints(configs: dict[str, ModelConfig], head: ModelConfig | None) -> None:
    """Report what each model, and a head beside its target, would take of every device's memory."""
    from outrider.engine.llama_footprint import footprint, head_footprint

    _begin(TrialStep.MEMORY)
    found = {role: footprint(llama_config(config)) for role, config in configs.items()}
    if head is not None and "target" in configs:
        try:
            found["draft"] = head_footprint(llama_config(head), llama_config(configs["target"]))
        except InvalidConfig as error:
            _print(head_fault=str(error).partition(": ")[2])
    _print(footprints={role: asdict(each) for role, each in found.items()})


def _tell_kernels(trials: Sequence[dict[str, Any]]) -> None:
    """Compute from here on with the kernels that a service of the first model would choose."""
    from outrider.engine.llama_library import kernels_in_use

    _begin(TrialStep.KERNELS)
    config, *others = [_config(trial["values"]) for trial in trials]
    choose_kernels(config, others)
    _print(kernels=kernels_in_use())


def _config(values: dict[str, Any]) -> ModelConfig:
    return ModelConfig(**{**values, "model": Path(values["model"])})


def _read(role: str, path: Path) -> tuple[common.Vocabulary, FileVocabulary] | None:
    """Return a file's vocabulary and the names of its tokens, or say why there is none."""
    from outrider.engine.llama_loading import read_vocabulary

    _begin(TrialStep.READ)
    try:
        found = read_vocabulary(path)
    except OutriderError as error:
        _print(**{role: {"error": str(error)}})
        return None
    _print(**{role: {"trained_context": found.trained_context}})
    digest = handshake.digest(found.names)
    return describe_vocabulary(found.description, digest), found


def _tell_pair(target: Any, draft: Any) -> Translation | None:
    """Compare two vocabularies exactly as the orchestrator does.

    Returns how the draft would translate; None where it need not, or cannot.
    """
    try:
        if handshake.check_vocabularies(target[0], draft[0]):
            handshake.check_names(target[1].names, draft[1].names)
    except VocabularyMismatch as error:
        its = Translation(_table(*draft), _table(*target))
        differences = compare(its).sentence() if its.shared_count else ""
        rule = error.metadata["rule"]
        _print(pair={"mismatch": str(error), "rule": rule, "differences": differences})
        return its if its.shared_count else None
    _print(pair={})
    return None


def _table(described: common.Vocabulary, found: FileVocabulary) -> TokenTable:
    return token_table(described, PeerVocabulary(found.texts, found.names, {}, 0))


def _try(role: str, values: dict[str, Any], head: ModelConfig | None) -> Numerics | None:
    """Decode with a model, and with the head of a target; return the numerics that suit that."""
    config = _config(values)
    _print(step=TrialStep.LOAD.name, model=config.model.name)
    model = _load(config)
    _begin(TrialStep.SEVERAL)
    decode_several(model)
    _begin(TrialStep.ONE)
    decode_one(model)
    profile = _try_target(model, head) if role == "target" else None
    model.close()
    return profile


def _try_target(model: Model, head: ModelConfig | None) -> Numerics:
    """Report what decodes, rollbacks and a head cost a target; return the numerics that suit it."""
    _begin(TrialStep.NUMERICS)
    padding = exact_padding(model) if can_be_exact(model.describe()) else None
    model.pad_multiple = 1
    decodes = decode_costs(model, perf_counter)
    plain = plain_costs(decodes, padding)
    profile = choose(None, plain)
    _print(profile=profile.value, plain_ms=[1e3 * plain.native, 1e3 * (plain.exact or 0.0)])
    _print(decode_ms=_milliseconds(decodes))
    model.truncate(0, 0)
    memory, price = model.describe(), rejection_cost(model, perf_counter)
    kind = "none" if memory.rollback is Rollback.RESTART else memory.rollback.value
    _print(rollback=[kind, memory.snapshot_count, 1e3 * price.checkpoint_seconds])
    is_padded = profile is Numerics.EXACT and padding is not None
    _tell_head(model, head, padded_costs(decodes, padding or 1) if is_padded else decodes, price)
    return profile


def _milliseconds(decodes: Costs) -> list[tuple[int, float]]:
    return [(each.rows, 1e3 * each.seconds) for each in decodes]


def _tell_head(
    target: Model, file: ModelConfig | None, decodes: Costs, price: RejectionCost
) -> None:
    """Report what decides from which acceptance on a head pays; nothing without a head."""
    _begin(TrialStep.HEAD)
    head = open_own_head(target, _lightened(file) if file else None)
    if head is None:
        return
    _print(
        head={
            "token_ms": 1e3 * head.costs.token,
            "most_tokens": head.most_tokens,
            "target_ms": _milliseconds(decodes),
            "price": price,
        }
    )
    head.close()


def _tell_expected(
    values: dict[str, dict[str, Any]], translation: Translation | None, is_native: bool
) -> None:
    """Report what the draft does for the target, as far as they are small enough to be loaded."""
    if "draft" not in values or ("target" not in values and translation is None):
        return
    _begin(TrialStep.EXPECTED)
    if "target" not in values:
        assert translation is not None
        draft = _loaded(values["draft"])
        _print(expected=asdict(expect_without_target(draft, translation)))
        draft.close()
        return
    target, draft = _loaded(values["target"]), _loaded(values["draft"])
    draft.pad_multiple = 1
    translation = needed_translation(draft, target)
    if translation is None or translation.shared_count:
        expected = expect(target, draft, translation)
        if is_native:
            target.pad_multiple = 1
        _print(expected=asdict(expected), costs=costs_of(target, draft))
    target.close()
    draft.close()


def _loaded(values: dict[str, Any]) -> Model:
    return _load(_config(values))


def _begin(step: TrialStep) -> None:
    _print(step=step.name)


def _print(**found: Any) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
