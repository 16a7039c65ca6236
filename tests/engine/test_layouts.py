"""One pool of cells or a stream for each session: the same texts, and room that is counted."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from outrider.engine.host import EngineHost
from outrider.engine.hosting import HostOptions
from outrider.engine.job import Lease, Step, Ticket
from outrider.engine.llama import LlamaModel
from outrider.engine.llama_loading import LlamaConfig
from outrider.engine.model import Chunk, Layout, Model, NoRoom, Numerics, Row
from outrider.errors import EngineBusy, InvalidConfig
from tests.support.tiny_gguf import Shape, write_model
from tests.support.toy import ToyModel

POOL, POOL_FLASH = Layout(is_pool=True), Layout(is_pool=True, flash_attention=True)
WAIT = 30.0
SESSIONS, CONTEXT = 2, 256
TOLERANCE = 0.5  # of a logit; another text's are more than 2 away
TEXT = [3 + 7 * i % 290 for i in range(40)]

Load = Callable[..., LlamaModel]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return write_model(folder / "tiny.gguf", shape=Shape(layers=2))


def config_of(path: Path, **options: object) -> LlamaConfig:
    values: dict[str, object] = {
        "path": path,
        "context": CONTEXT,
        "sequence_count": SESSIONS,
        "thread_count": 1,
        "pad_multiple": 1,
        "batch_rows": 128,
    }
    return LlamaConfig(**values | options)  # type: ignore[arg-type]


@pytest.fixture
def pool(path: Path) -> Iterator[LlamaModel]:
    model = LlamaModel(config_of(path, pool=True, flash_attention=False))
    yield model
    model.close()


def read(model: Model, sequence: int, text: Sequence[int]) -> Row:
    [[row]] = model.decode([Chunk(sequence, 0, text, 1)])
    return row.copy()


# --- the model ---


def test_options_and_memory_leave_the_layouts_that_are_offered(path: Path, tmp_path: Path) -> None:
    def layouts(file: Path, **options: object) -> list[tuple[bool, bool]]:
        model = LlamaModel(config_of(file, **options))
        description = model.describe()
        model.close()
        assert description.layout == description.layouts[0]
        return [(each.is_pool, each.flash_attention) for each in description.layouts]

    assert layouts(path) == [(False, False), (False, True), (True, False), (True, True)]
    assert layouts(path, pool=False, flash_attention=True) == [(False, True)]
    assert layouts(path, pool=True, flash_attention=False) == [(True, False)]
    long = write_model(tmp_path / "l.gguf", shape=Shape(short_context=256, long_factor=8.0))
    assert layouts(long, flash_attention=False) == [(False, False)]
    with pytest.raises(InvalidConfig, match="cannot be one pool"):
        layouts(long, pool=True)
    with pytest.raises(InvalidConfig, match="flash-attention: must be on"):
        layouts(path, cache_type_v="q8_0", flash_attention=False)


def test_a_model_that_is_opened_anew_holds_nothing_and_keeps_its_weights(path: Path) -> None:
    model = LlamaModel(config_of(path))
    expected = read(model, 0, TEXT)
    identity = model.describe().identity
    for layout in (POOL, POOL_FLASH, Layout(flash_attention=True), Layout()):
        model.open(layout)
        assert model.describe().layout == layout
        assert model.truncate(0, CONTEXT) == 0
        assert np.abs(read(model, 0, TEXT) - expected).max() < TOLERANCE
        assert np.abs(read(model, 1, TEXT[::-1]) - expected).max() > 2.0
    assert model.describe().identity == identity
    model.truncate(1, 0)
    np.testing.assert_array_equal(read(model, 1, TEXT), expected)
    model.close()


def test_other_threads_may_ask_what_a_model_is_while_its_context_is_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LlamaModel(config_of(path))
    opened, expected = model._new_context, model.describe()

    def ask_first(layout: Layout) -> object:
        assert model.describe() == expected  # between two contexts there is none to ask
        return opened(layout)

    monkeypatch.setattr(model, "_new_context", ask_first)
    model.open(expected.layout)
    model.close()


def test_a_pool_has_more_sequences_than_contexts_and_one_may_hold_a_whole_context(
    pool: LlamaModel,
) -> None:
    description = pool.describe()
    assert description.pool_cells == SESSIONS * CONTEXT
    assert description.sequence_count == 4 * SESSIONS
    long = [3 + i % 290 for i in range(description.context)]
    pool.decode([Chunk(7, 0, long[:128], 0)])
    pool.decode([Chunk(7, 128, long[128:], 0)])
    for sequence in range(6):
        read(pool, sequence, TEXT)
    with pytest.raises(NoRoom):
        read(pool, 6, TEXT)
    pool.truncate(5, 0)
    assert np.isfinite(read(pool, 6, TEXT)).all()


def test_a_shared_start_takes_no_cells_in_a_pool(pool: LlamaModel) -> None:
    long = [3 + i % 290 for i in range(pool.describe().context - 1)]
    pool.decode([Chunk(0, 0, long[:128], 0)])
    pool.decode([Chunk(0, 128, long[128:], 0)])
    # Eight texts of a whole context each; two contexts would hold two.
    for sequence in range(1, 8):
        assert pool.copy_prefix(0, sequence, len(long)) == len(long)
    rows = pool.decode([Chunk(sequence, len(long), [5], 1) for sequence in range(8)])
    # Who cuts its part leaves the others theirs.
    assert pool.truncate(0, 16) == 16
    pool.truncate(3, len(long))
    [[again]] = pool.decode([Chunk(3, len(long), [5], 1)])
    assert all(np.abs(row - again).max() < TOLERANCE for [row] in rows)


@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("flash_attention", [True, False])
def test_a_decode_comes_after_repeated_cells_and_they_leave_nothing(
    path: Path, pool: bool, flash_attention: bool
) -> None:
    model = LlamaModel(config_of(path, pool=pool, flash_attention=flash_attention))
    texts = TEXT, TEXT[::-1]

    def rows() -> list[Row]:
        return [read(model, sequence, text) for sequence, text in enumerate(texts)]

    fresh = rows()
    for sequence in range(SESSIONS):
        assert model.truncate(sequence, 8) == 8
        assert model.repeat_cells(sequence, 200) == 200
        assert model.truncate(sequence, 150) == 150
    together = model.decode([Chunk(sequence, 150, [5], 1) for sequence in range(SESSIONS)])
    assert all(np.isfinite(row).all() for [row] in together)
    model.duplicate(0, 1)
    model.decode([Chunk(1, 151, [5], 1)])
    for sequence in range(SESSIONS):
        model.truncate(sequence, 0)
    np.testing.assert_array_equal(rows(), fresh)
    model.close()


def test_repeated_cells_may_fill_a_context_and_are_refused_where_a_pool_is_full(
    pool: LlamaModel,
) -> None:
    context = pool.describe().context
    for sequence in range(SESSIONS):
        read(pool, sequence, TEXT)
        assert pool.repeat_cells(sequence, context) == context
    expected = read(pool, 2, TEXT[:3])  # the last cells, which a context has for padding
    assert pool.repeat_cells(2, context) == 3, "what it held before"
    pool.truncate(0, 0)
    pool.truncate(2, 0)
    np.testing.assert_array_equal(read(pool, 2, TEXT[:3]), expected)


def test_sequences_of_a_pool_are_not_exchanged(pool: LlamaModel) -> None:
    assert not pool.describe().can_exchange
    read(pool, 0, TEXT)
    with pytest.raises(AssertionError, match="pool"):
        pool.exchange(0, 1)


# --- the host ---


Host = Callable[..., EngineHost]


@pytest.fixture
def serve() -> Iterator[Host]:
    hosts = []

    def start(load: Callable[[], Model], **options: object) -> EngineHost:
        values: dict[str, object] = {"numerics": Numerics.NATIVE, "room_seconds": 0.05}
        hosts.append(EngineHost(load, HostOptions(**values | options)))  # type: ignore[arg-type]
        hosts[-1].start().result(WAIT)
        return hosts[-1]

    yield start
    for host in hosts:
        host.stop()


def write(text: list[int], count: int) -> Callable[[Lease], Generator[Step, list[Row], list[int]]]:
    """Return a job that reads a text and then writes so many tokens, the likeliest ones."""

    def job(lease: Lease) -> Generator[Step, list[Row], list[int]]:
        written: list[int] = []
        while len(written) < count:
            left = lease.reconcile(text + written, 1)
            [row] = yield Step(left, 1)
            written.append(int(np.argmax(row)))
        return written

    return job


def ask(host: EngineHost, name: bytes, text: list[int], count: int) -> Ticket:
    return host.submit(name, write(text, count), text, room=len(text) + count)


def result(ticket: Ticket) -> list[int]:
    future: Future[list[int]] = ticket.future
    return future.result(WAIT)


def texts(count: int, length: int) -> list[list[int]]:
    return [[3 + (7 * i + 11 * number) % 57 for i in range(length)] for number in range(count)]


def test_texts_are_the_same_in_a_pool_where_bits_are(serve: Host) -> None:
    prompts = texts(6, 30)

    def written(*layouts: Layout) -> list[list[int]]:
        host = serve(lambda: ToyModel(context=CONTEXT, sequence_count=6, layouts=layouts))
        tickets = [ask(host, bytes([i]), prompt, 12) for i, prompt in enumerate(prompts)]
        return [result(each) for each in tickets]

    assert written(POOL) == written(Layout())


def test_many_short_sessions_and_a_long_one_share_what_would_be_two_contexts(serve: Host) -> None:
    model = ToyModel(context=CONTEXT, sequence_count=2, layouts=(POOL,))
    host = serve(lambda: model)
    for name in range(5):
        host.pin(bytes([name]), True)
    [long] = texts(1, CONTEXT - 56)
    tickets = [ask(host, b"\0", long, 40)]
    tickets += [ask(host, bytes([i]), text, 8) for i, text in enumerate(texts(4, 30), 1)]
    assert [len(result(each)) for each in tickets] == [40, 8, 8, 8, 8]
    held = [host.held_count(bytes([name])).result(WAIT) for name in range(5)]
    assert all(held), "nobody was evicted"
    # Each may still grow to what it was promised, so a second long one has to wait.
    with pytest.raises(EngineBusy):
        result(ask(host, b"second", long, 40))


def test_what_a_session_left_is_room_for_others(serve: Host) -> None:
    model = ToyModel(context=64, sequence_count=1, layouts=(POOL,))
    host = serve(lambda: model)
    for name, text in enumerate(texts(6, 40)):
        assert len(result(ask(host, bytes([name]), text, 10))) == 10  # evicts the one before
    for name in range(6):
        host.forget(bytes([name])).result(WAIT)
    assert len(result(ask(host, b"all", texts(1, 50)[0], 10))) == 10
    assert sum(bool(model.held(sequence)) for sequence in range(4)) == 1


def test_a_pool_that_is_full_splits_a_decode_and_fails_only_who_has_no_room(serve: Host) -> None:
    def before_decode(chunks: Sequence[Chunk]) -> None:
        if len(chunks) > 1:
            raise NoRoom("for both")

    model = ToyModel(context=CONTEXT, sequence_count=2, layouts=(POOL,))
    host = serve(lambda: model)
    model.before_decode = before_decode
    tickets = [ask(host, bytes([i]), text, 6) for i, text in enumerate(texts(4, 20))]
    assert [len(result(each)) for each in tickets] == [6, 6, 6, 6]
    model.before_decode = None
    alone = [result(ask(host, bytes([9 + i]), t, 6)) for i, t in enumerate(texts(4, 20))]
    assert alone == [result(each) for each in tickets]


def test_a_session_of_unknown_length_is_given_room_for_a_whole_context(serve: Host) -> None:
    host = serve(lambda: ToyModel(context=64, sequence_count=2, layouts=(POOL,)))
    for name in (b"a", b"b", b"c"):
        host.pin(name, True)
    for name in (b"a", b"b"):
        result(host.submit(name, write([5, 6, 7], 2), [5, 6, 7]))
    with pytest.raises(EngineBusy):
        result(host.submit(b"c", write([5, 6, 7], 2), [5, 6, 7], room=8))


def test_the_tiny_model_writes_in_a_pool_what_it_writes_alone(path: Path, serve: Host) -> None:
    prompts = texts(5, 30)

    def written(**options: object) -> list[list[int]]:
        host = serve(lambda: LlamaModel(config_of(path, **options)))
        alone = [result(ask(host, b"x", prompt, 6)) for prompt in prompts[:1]]
        tickets = [ask(host, bytes([i]), prompt, 6) for i, prompt in enumerate(prompts)]
        together = [result(each) for each in tickets]
        return alone + together

    assert written(pool=True, flash_attention=False) == written(pool=False, flash_attention=False)
