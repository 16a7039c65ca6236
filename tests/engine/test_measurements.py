"""What was measured of a model is found again under the same conditions, and under no others."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import pytest

from outrider.costs import Point
from outrider.engine import calibrate, measurements
from outrider.engine.host import EngineHost, HostOptions, Loaded
from outrider.engine.measurements import Measured, Measurements, forget, read
from outrider.engine.model import ModelDescription, Numerics
from outrider.model_service.config import ModelConfig
from outrider.model_service.run import kept_measurements
from tests.support.toy import ToyModel

MEASURED = Measured(2, [Point(1, 0.02, 1e-5), Point(4, 0.05, 3e-5)], is_disturbed=False)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "outrider" / "measurements"


def store(settings: str = "settings", library: str = "library") -> Measurements:
    return Measurements(settings, lambda: library)


@pytest.fixture
def model() -> ModelDescription:
    return ToyModel().describe()


def test_what_is_kept_is_found(model: ModelDescription, cache: Path) -> None:
    assert store().find(model) is None
    store().keep(model, MEASURED)
    found = store().find(model)
    assert found is not None and found.day
    assert replace(found, day="") == MEASURED
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    [file] = cache.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "change",
    [
        *({name: 7} for name in ("context", "sequence_count", "batch_rows", "thread_count")),
        {"identity": bytes(32)},
        {"system_info": "another build"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_model_or_build_is_measured_anew(model: ModelDescription, change) -> None:
    store().keep(model, MEASURED)
    assert store().find(replace(model, **change)) is None


def test_other_options_libraries_processors_and_methods_are_measured_anew(
    model: ModelDescription, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store().keep(model, MEASURED)
    assert store(settings="others").find(model) is None
    assert store(library="another").find(model) is None
    with monkeypatch.context() as patch:
        patch.setenv("GOMP_SPINCOUNT", "77")
        assert store().find(model) is None
    with monkeypatch.context() as patch:
        patch.setattr(measurements, "processor", lambda: "another")
        assert store().find(model) is None
    method = tmp_path / "calibrate.py"
    method.write_text("another way to measure")
    with monkeypatch.context() as patch:
        patch.setattr(calibrate, "__file__", str(method))
        assert store().find(model) is None
    assert store().find(model) is not None


def test_every_option_of_the_engine_is_part_of_the_conditions(model: ModelDescription) -> None:
    config = ModelConfig(model=Path("m.gguf"))
    kept_measurements(config, numerics=Numerics.EXACT).keep(model, MEASURED)
    assert kept_measurements(config, numerics=Numerics.EXACT).find(model) is not None
    assert kept_measurements(config, numerics=Numerics.NATIVE).find(model) is None
    for change in ({"cache_type_k": "q8_0"}, {"n_gpu_layers": 3}, {"threads": 77}, {"nice": 19}):
        assert (
            kept_measurements(replace(config, **change), numerics=Numerics.EXACT).find(model)
            is None
        )
    # Where the file lies and what it is called changes nothing: its identity is in the key.
    elsewhere = replace(config, model=Path("/x/n.gguf"), alias="other")
    assert kept_measurements(elsewhere, numerics=Numerics.EXACT).find(model) is not None


RECORD = {
    "padding": 2,
    "costs": [[1, 0.02, 1e-5], [4, 0.05, 0.0]],
    "disturbed": False,
    "day": "2026-01-02",
}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        json.dumps({"padding": 2}).encode(),
        *(
            json.dumps(RECORD | change).encode()
            for change in (
                {"padding": 3},
                {"padding": "2"},
                {"costs": []},
                {"costs": [[0, 1.0, 0.0]]},
                {"costs": [[4, 0.1, 0.0], [1, 0.1, 0.0]]},
                {"costs": [[1, 0.0, 0.0]]},
                {"costs": [[1, float("nan"), 0.0]]},
                {"costs": [[1.5, 0.1, 0.0]]},
                {"costs": [[1, 0.1, -1e-9]]},
                {"costs": [[1, 0.1, float("inf")]]},
                {"costs": [[1, 0.1]]},
                {"costs": {"1": 0.1}},
                {"day": 5},
                {"disturbed": 1},
            )
        ),
    ],
)
def test_a_damaged_record_is_no_record(content: bytes) -> None:
    assert read(json.dumps(RECORD).encode()) is not None
    assert read(content) is None


def test_where_nothing_can_be_written_nothing_is_kept(
    model: ModelDescription, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    store().keep(model, MEASURED)
    assert store().find(model) is None
    assert forget() == 0


def test_forgotten_measurements_are_made_again(model: ModelDescription) -> None:
    store().keep(model, MEASURED)
    assert forget() == 1
    assert store().find(model) is None


def start(
    kept: Measurements, numerics: Numerics | None = Numerics.EXACT, step: float = 0.0
) -> tuple[Loaded, int]:
    """Start an engine whose decodes take `step` seconds, and stop it; return the padding, too."""
    toy = ToyModel(step_seconds=step)
    host = EngineHost(lambda: toy, HostOptions(numerics=numerics), measurements=kept)
    loaded = host.start().result(20)
    host.stop()
    return loaded, toy.pad_multiple


@pytest.fixture
def busy_share(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let the processor look used by us for this share of the time that all threads could."""

    def use(share: float) -> None:
        threads = ToyModel().describe().thread_count
        monkeypatch.setattr(
            "outrider.engine.host.process_time", lambda: share * threads * perf_counter()
        )

    return use


@pytest.mark.parametrize("numerics", [None, *Numerics])
def test_a_second_start_measures_nothing(
    numerics: Numerics | None, busy_share: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_share(1.0)
    first, padding = start(store(), numerics)
    assert first.measured == "now"

    def measured_again(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("outrider.engine.host.exact_padding", measured_again)
    monkeypatch.setattr("outrider.engine.host.decode_costs", measured_again)
    again, same = start(store(), numerics)
    assert (again.numerics, same) == (first.numerics, padding)
    assert again.measured not in ("now", "")
    assert (list(again.costs), again.plain) == (list(first.costs), first.plain)


def test_costs_that_were_measured_beside_other_work_are_measured_again_once_there_is_less(
    busy_share: Callable[[float], None],
) -> None:
    busy_share(0.2)
    busy, padding = start(store(), step=0.02)
    assert start(store(), step=0.02)[0].measured != "now", "nothing is quicker yet"
    busy_share(1.0)
    quiet, same = start(store(), step=0.002)
    assert quiet.measured == "now"
    assert quiet.costs[0][1] < 0.5 * busy.costs[0][1]
    assert (quiet.numerics, same) == (busy.numerics, padding)
    assert start(store(), step=0.0)[0].measured != "now", "undisturbed costs stay"
