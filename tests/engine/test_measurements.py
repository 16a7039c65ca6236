"""What was measured of a model is found again under the same conditions, and under no others."""

from __future__ import annotations

import itertools
import json
import queue
import stat
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import pytest

from outrider.costs import Point
from outrider.engine import calibrate, measurements
from outrider.engine.core_lock import NoCoreLock
from outrider.engine.host import EngineHost
from outrider.engine.hosting import HostOptions
from outrider.engine.job import Lease, Step
from outrider.engine.layout import LayoutSeconds
from outrider.engine.measurements import MeasuredModel, Measurements, forget, read
from outrider.engine.model import Chunk, Layout, ModelDescription, Numerics, Rollback, Row
from outrider.engine.preparation import SOON, Preparation, Prepared
from outrider.model_service.config import ModelConfig
from outrider.model_service.run import kept_measurements
from tests.support.toy import ToyModel

ALL_LAYOUTS = tuple(Layout(*each) for each in itertools.product((False, True), repeat=2))
MEASURED = MeasuredModel(
    2,
    [Point(1, 0.02, 1e-5), Point(4, 0.05, 3e-5)],
    is_disturbed=False,
    layouts=[LayoutSeconds(each, [0.1, 0.2]) for each in ALL_LAYOUTS],
    chosen_costs=[Point(1, 0.01, 1e-5)],
    token_seconds={2: 0.02, 6: 0.01},
)


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
        *({name: 7} for name in ("context", "sequence_count", "batch_rows")),
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
        patch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
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
    "layouts": [[False, True, [0.2, 0.3]], [True, True, [0.2, 0.3]]],
    "chosen_costs": [],
    "token_seconds": [[2, 0.02]],
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
                {"chosen_costs": [[0, 1.0, 0.0]]},
                {"layouts": [[False, True, [0.0, 0.3]]]},
                {"layouts": [[False, True, []]]},
                {"layouts": [[False, True, [0.2]], [True, True, [0.2, 0.3]]]},
                {"layouts": [[False, True]]},
                {"token_seconds": [[2, 0.0]]},
                {"token_seconds": [[2, float("nan")]]},
                {"token_seconds": [2]},
                {"token_seconds": [["two", 0.1]]},
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


class Cores(NoCoreLock):
    """The cores are nobody else's turn, and whether others use them can be seen."""

    core_count = 2


def options(numerics: Numerics | None) -> HostOptions:
    return HostOptions(numerics=numerics, first_quiet_seconds=0.05, quiet_seconds=0.1)


def start(
    kept: Measurements | None,
    numerics: Numerics | None = Numerics.EXACT,
    step: float = 0.0,
    waits: bool = True,
) -> tuple[Prepared, Prepared | None, int]:
    """Start an engine whose decodes take `step` seconds; stop it once nothing is due if it `waits`.

    Returns what it ran with at first, what it measured then, and the padding at the end.
    """
    toy, later = ToyModel(step_seconds=step), queue.SimpleQueue[Prepared]()
    host = EngineHost(lambda: toy, options(numerics), lambda _: Cores(), kept)
    host.on_prepared = later.put
    first = host.start().result(20).prepared
    due = waits and kept is not None and (first.measured == SOON or is_disturbed(kept, toy))
    measured = later.get(timeout=20) if due else None
    host.stop()
    return first, measured, toy.pad_multiple


def test_what_a_rejection_costs_is_measured_in_a_turn_of_its_own_and_without_decodes() -> None:
    acts: list[str] = []

    class Turns(NoCoreLock):
        def wait(self, seconds: float) -> None:
            acts.append("turn")

        def give(self) -> None:
            acts.append("give")

    class Noted(ToyModel):
        def decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
            # Without a row llama.cpp is still at work when it returns.
            acts.append("decode" if chunks[0].row_count else "begin")
            return super().decode(chunks)

        def checkpoint(self, sequence: int) -> None:
            acts.append("checkpoint")
            super().checkpoint(sequence)

    model = Noted(rollback=Rollback.CHECKPOINTS)
    Preparation(model, Numerics.NATIVE, None, Turns()).begin()
    first = acts.index("checkpoint")
    assert acts[first - 2 : first + 2] == ["turn", "decode", "checkpoint", "decode"]


def is_disturbed(kept: Measurements, toy: ToyModel) -> bool:
    found = kept.find(toy.describe())
    return found is not None and found.is_disturbed


@pytest.fixture
def busy_share(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let the processor look used by us for this share of the time that all threads could."""

    def use(share: float) -> None:
        threads = ToyModel().describe().thread_count
        monkeypatch.setattr(
            "outrider.engine.preparation.process_time", lambda: share * threads * perf_counter()
        )

    return use


@pytest.mark.parametrize("numerics", [None, *Numerics])
def test_a_second_start_measures_nothing(
    numerics: Numerics | None, busy_share: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_share(1.0)
    first, later, padding = start(store(), numerics)
    measured = later or first
    assert measured.measured == "now"

    def measured_again(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("outrider.engine.preparation.exact_padding", measured_again)
    monkeypatch.setattr("outrider.engine.preparation.decode_costs", measured_again)
    again, nothing, same = start(store(), numerics)
    assert nothing is None
    assert (again.numerics, same) == (measured.numerics, padding)
    assert again.measured not in ("now", SOON, "")
    assert (list(again.costs), again.plain) == (list(measured.costs), measured.plain)


class SlowOutside(ToyModel):
    """A toy whose decodes take longer in all layouts but one."""

    fastest = Layout(is_pool=True)

    def decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        time.sleep(0.0005 if self.layout == self.fastest else 0.002)
        return super().decode(chunks)


def test_the_fastest_layout_is_measured_once_and_opened_at_every_later_start(
    busy_share: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_share(1.0)
    toy, later = SlowOutside(layouts=ALL_LAYOUTS, wobble=1e-3), queue.SimpleQueue[Prepared]()
    host = EngineHost(lambda: toy, options(None), measurements=store())
    host.on_prepared = later.put
    first = host.start().result(20).prepared
    measured = later.get(timeout=20)
    assert first.layout.startswith("streams")
    assert measured.layout.partition(";")[0] == "pool"
    ticket = host.submit(bytes(16), _one_token, room=8)
    assert ticket.future.result(20) == 1
    host.stop()
    assert (toy.layout, len(toy.held(15))) == (SlowOutside.fastest, 0)

    def measured_again(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("outrider.engine.preparation.decode_costs", measured_again)
    monkeypatch.setattr("outrider.engine.preparation.measure_layouts", measured_again)
    toy = SlowOutside(layouts=ALL_LAYOUTS, wobble=1e-3)
    host = EngineHost(lambda: toy, options(None), measurements=store())
    assert host.start().result(20).prepared.layout == measured.layout
    host.stop()
    assert toy.layout == SlowOutside.fastest


class Threaded(ToyModel):
    """A toy that is quickest with four threads."""

    def decode(self, chunks: Sequence[Chunk]) -> list[list[Row]]:
        time.sleep(0.0005 if self.thread_count == 4 else 0.002)
        return super().decode(chunks)


def test_the_threads_are_chosen_once_and_kept_for_every_later_start(
    busy_share: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_share(6.0)  # of one thread's time, as it has more
    toy, later = Threaded(thread_choices=(6, 4, 2)), queue.SimpleQueue[Prepared]()
    host = EngineHost(lambda: toy, options(Numerics.NATIVE), lambda _: Cores(), store())
    host.on_prepared = later.put
    first = host.start().result(20).prepared
    measured = later.get(timeout=20)
    host.stop()
    assert first.threads == measured.threads and first.threads.startswith("4 threads: ")
    assert toy.thread_count == 4

    def measured_again(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("outrider.engine.preparation.token_seconds", measured_again)
    toy = Threaded(thread_choices=(6, 4, 2))
    host = EngineHost(lambda: toy, options(Numerics.NATIVE), lambda _: Cores(), store())
    assert host.start().result(20).prepared.threads == first.threads
    host.stop()
    assert toy.thread_count == 4


def _one_token(lease: Lease) -> Generator[Step, list[Row], int]:
    return len((yield Step([1, 2, 3], 1)))


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_exact_bits_and_measurements_beside_other_work_leave_the_first_layout(
    share: float, busy_share: Callable[[float], None]
) -> None:
    busy_share(share)
    toy = SlowOutside(layouts=ALL_LAYOUTS, wobble=1e-3 if share < 1.0 else 0.0)
    host = EngineHost(
        lambda: toy, options(Numerics.EXACT if share == 1.0 else None), lambda _: Cores()
    )
    assert host.start().result(20).prepared.layout == "streams"
    host.stop()
    assert toy.layout == Layout()


def test_costs_of_the_chosen_layout_beside_other_work_are_measured_again_some_day(
    busy_share: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_share(1.0)
    toy, kept, calls = SlowOutside(layouts=ALL_LAYOUTS, wobble=1e-3), store(), []

    def costs(*_: object) -> list[Point]:
        calls.append(toy.layout)
        if len(calls) == 2:  # the layouts are compared, others begin to work
            busy_share(0.2)
        return [Point(1, 0.01)]

    monkeypatch.setattr("outrider.engine.preparation.decode_costs", costs)
    preparation = Preparation(toy, None, kept, Cores())
    preparation.begin()
    monkeypatch.setattr("outrider.engine.preparation._LOOK_SECONDS", 0.0)
    prepared = preparation.measure(lambda: None, lambda: None, lambda: False)
    assert prepared is not None and prepared.is_rough
    assert calls[1] == SlowOutside.fastest
    assert is_disturbed(kept, SlowOutside(layouts=ALL_LAYOUTS, wobble=1e-3))


@pytest.mark.parametrize("numerics", [None, Numerics.NATIVE])
def test_a_first_start_measures_when_nobody_waits(
    numerics: Numerics | None, busy_share: Callable[[float], None]
) -> None:
    busy_share(1.0)
    first, later, _ = start(store(), numerics)
    assert (first.measured, first.numerics) == (SOON, Numerics.NATIVE)
    assert later is not None and later.measured == "now"
    assert len(later.costs) > len(first.costs)


@pytest.mark.parametrize("kept", [True, False])
def test_equal_bits_that_were_asked_for_are_measured_before_anything_is_served(kept: bool) -> None:
    first, _, padding = start(store() if kept else None, waits=False)
    assert (first.measured, first.numerics) == ("now", Numerics.EXACT)
    assert padding == first.costs[0].rows


def test_costs_that_were_measured_beside_other_work_are_measured_again_when_nobody_waits(
    busy_share: Callable[[float], None],
) -> None:
    busy_share(0.2)
    busy, _, padding = start(store(), step=0.02, waits=False)
    busy_share(1.0)
    first, quiet, same = start(store(), step=0.002)
    assert first.measured not in ("now", SOON)
    assert quiet is not None and quiet.measured == "now"
    assert quiet.costs[0].seconds < 0.5 * busy.costs[0].seconds
    assert (quiet.numerics, same) == (busy.numerics, padding)
    _, nothing, _ = start(store(), step=0.0)
    assert nothing is None, "undisturbed costs stay"


def test_measuring_gives_way_to_a_request_and_is_done_after_it(
    busy_share: Callable[[float], None],
) -> None:
    busy_share(1.0)
    toy, later = ToyModel(step_seconds=0.002), queue.SimpleQueue[Prepared]()
    host = EngineHost(lambda: toy, options(None), measurements=store())
    host.on_prepared = later.put
    host.start().result(20)

    def job(lease: Lease) -> Generator[Step, list[Row], int]:
        lease.keep(0)
        rows = yield Step([1, 2, 3], 1)
        return int(rows[0].argmax())

    [[row]] = ToyModel().decode([Chunk(0, 0, [1, 2, 3], 1)])
    for pause in (0.1, 0.15, 0.2, 0.3, 0.4):  # in some of which it has begun
        assert host.submit(bytes(16), job).future.result(20) == row.argmax()
        time.sleep(pause)
    assert later.get(timeout=60).measured == "now"
    host.stop()


def test_a_slow_first_look_still_looks_at_every_row_count() -> None:
    model = ToyModel(step_seconds=0.01)
    model.pad_multiple = 1
    costs = calibrate.quick_costs(model, perf_counter, budget=0.0)
    assert [each.rows for each in costs] == [1, 2, 3, 4, 8]
    quick = ToyModel()
    quick.pad_multiple = 1
    assert calibrate.quick_costs(quick, perf_counter)[-1].rows == 32, "what reading costs"


def test_measuring_gives_way_to_other_processes(busy_share: Callable[[float], None]) -> None:
    toy, later = ToyModel(step_seconds=0.02), queue.SimpleQueue[Prepared]()
    host = EngineHost(lambda: toy, options(None), lambda _: Cores(), store())
    host.on_prepared = later.put
    busy_share(0.2)
    host.start().result(20)
    with pytest.raises(queue.Empty):
        later.get(timeout=2.0)
    busy_share(1.0)
    assert later.get(timeout=30).measured == "now"
    host.stop()


@pytest.mark.fault(
    "others",
    "a target that was never measured has nothing to do for minutes while others use its cores",
    before="every two minutes it forgot all sessions to measure, could not, and tried again",
    now="it looks first whether it can, forgets nothing before, and waits twice as long each time",
)
@pytest.mark.parametrize("session_count", [1, 3])
@pytest.mark.parametrize("others_hold_the_lock", [True, False])
def test_a_try_to_measure_beside_others_keeps_what_sessions_hold_and_is_repeated_less_often(
    session_count: int,
    others_hold_the_lock: bool,
    busy_share: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[float] = []

    class Seen(Cores):
        def try_take(self) -> bool:
            tries.append(perf_counter())
            return not others_hold_the_lock

    busy_share(0.2)
    monkeypatch.setattr("outrider.engine.preparation._LOOK_SECONDS", 0.01)
    toy = ToyModel(sequence_count=session_count, step_seconds=0.001)
    host = EngineHost(lambda: toy, options(None), lambda _: Seen(), store())
    host.start().result(20)
    assert host.submit(bytes(16), _one_token).future.result(20) == 1
    tries.clear()
    deadline = time.monotonic() + 60
    while len(tries) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert host.held_count(bytes(16)).result(20) == 3
    host.stop()
    gaps = [after - before for before, after in itertools.pairwise(tries)]
    assert gaps[-1] >= 0.8, "a tenth of a second at first, then twice as long each time"


def test_where_a_gpu_decodes_an_idle_processor_says_nothing(
    busy_share: Callable[[float], None],
) -> None:
    busy_share(0.01)
    toy, later = ToyModel(), queue.SimpleQueue[Prepared]()
    host = EngineHost(lambda: toy, options(None), measurements=store())
    host.on_prepared = later.put
    host.start().result(20)
    assert later.get(timeout=30).measured == "now"
    host.stop()
    found = store().find(toy.describe())
    assert found is not None and not found.is_disturbed
