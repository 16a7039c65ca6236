"""Several targets and drafts: a text stays where its prefix is, and goes on where a target is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

from orchestrator.leases import PeerLease
from orchestrator.names import Name, may_have_records
from orchestrator.peers import DialledPeer
from orchestrator.pool import Pool
from orchestrator.targets import PooledTarget
from outrider.core.rates import Mean
from outrider.costs import CostTable, Point
from outrider.engine.model import ModelDescription
from outrider.v1 import orchestrator_service_pb2 as messages
from tests.support.gateway import serving
from tests.support.services import (
    DRAFT,
    PATIENCE,
    TARGET,
    Completion,
    Gate,
    Interruption,
    ModelProcess,
    OrchestratorProcess,
    eventually,
    generate,
    request,
    running,
    toy,
    written_alone,
)
from tests.support.toy import NEVER, ToyModel

LENGTH = 150
PACE = 0.002  # of the targets' decodes: leaves time to break things
READY, REFUSED = messages.PEER_STATE_READY, messages.PEER_STATE_REFUSED


def target() -> ToyModel:
    return toy(seed=1, eos_bias=NEVER)


def other_weights() -> ToyModel:
    return toy(seed=5, eos_bias=NEVER)


def good_draft() -> ToyModel:
    return toy(seed=2, like=1, agreement=0.98, eos_bias=NEVER)


class Services:
    """Targets, drafts and the orchestrator over them."""

    def __init__(
        self,
        targets: Sequence[ModelProcess],
        drafts: Sequence[ModelProcess],
        orchestrator: OrchestratorProcess,
    ) -> None:
        self.targets, self.drafts, self.orchestrator = targets, drafts, orchestrator

    @property
    def pool(self) -> Pool:
        return self.orchestrator.pool

    def writing(self) -> ModelProcess:
        """Return the target where the one generation in flight is."""
        counts = [each.generation_count for each in self.pool.targets]
        return self.targets[counts.index(1)]

    async def kill(self) -> None:
        """Kill the target where the one generation in flight is."""
        await self.writing().kill()


@contextlib.asynccontextmanager
async def services(
    *make: Callable[[], ToyModel], drafts: int = 0, pace: float = PACE, **options: Any
) -> AsyncIterator[Services]:
    async with contextlib.AsyncExitStack() as stack:

        async def start(process: Any) -> Any:
            return await stack.enter_async_context(running(process))

        targets = [await start(ModelProcess(TARGET, each, pace=pace)) for each in make]
        its_drafts = [await start(ModelProcess(DRAFT, good_draft)) for _ in range(drafts)]
        addresses = [[each.address for each in group] for group in (targets, its_drafts)]
        orchestrator = await start(OrchestratorProcess(*addresses, **options))
        await orchestrator.until_ready()
        for each in orchestrator.pool.targets:  # what a toy measures is noise
            each.costs.table = CostTable([Point(1, 0.002), Point(8, 0.004)])
        yield Services(targets, its_drafts, orchestrator)


def assert_right(completion: Completion, asked: messages.GenerateRequest) -> None:
    assert completion.token_ids == written_alone(target(), asked)


def prompt(count: int, first: int = 0) -> list[int]:
    return [1 + (first + i * i) % 60 for i in range(count)]


@pytest.mark.parametrize("draft_length", [0, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_the_text_goes_on_at_the_other_target_when_one_is_killed(
    draft_length: int, temperature: float
) -> None:
    async with services(target, target, drafts=1) as those:
        asked = request(token_limit=LENGTH, n_max=draft_length, temperature=temperature)
        begin = time.monotonic()
        completion = await generate(those.orchestrator, asked, [Interruption(40, those.kill)])
        assert_right(completion, asked)
        assert completion.statistics.target_fault_count == 1
        assert time.monotonic() - begin < 5.0  # nobody waited for the one that is gone
        assert [each.generation_count for each in those.pool.targets] == [0, 0]


async def test_rejection_goes_on_at_the_other_target() -> None:
    async with services(target, target, drafts=1) as those:
        asked = request(token_limit=LENGTH, acceptance=3)
        completion = await generate(those.orchestrator, asked, [Interruption(30, those.kill)])
    assert len(completion.token_ids) == LENGTH


async def test_texts_in_flight_are_right_while_one_target_after_the_other_is_restarted() -> None:
    async with services(target, target, drafts=2) as those:
        asked = [request(f"text {i}", seed=i, token_limit=LENGTH) for i in range(6)]
        writing = [asyncio.create_task(generate(those.orchestrator, each)) for each in asked]
        for each in those.targets:
            await asyncio.sleep(0.15)
            await each.restart()
            await eventually(lambda: all(t.peer.ready for t in those.pool.targets))
        for completion, each in zip(await asyncio.gather(*writing), asked, strict=True):
            assert_right(completion, each)


async def test_texts_are_spread_over_the_targets() -> None:
    async with services(target, target) as those:
        asked = [request(f"text {i}", seed=i, token_limit=LENGTH) for i in range(4)]
        writing = [asyncio.create_task(generate(those.orchestrator, each)) for each in asked]
        await eventually(lambda: sum(t.generation_count for t in those.pool.targets) == 4)
        assert all(each.generation_count for each in those.pool.targets)
        status = await those.orchestrator.status()
        assert sum(peer.generation_count for peer in status.peers) == 4
        for completion, each in zip(await asyncio.gather(*writing), asked, strict=True):
            assert_right(completion, each)


async def test_a_target_of_other_weights_is_refused_by_name_and_writes_nothing() -> None:
    async with services(target, other_weights) as those:
        status = await those.orchestrator.status()
        assert [peer.state for peer in status.peers] == [READY, REFUSED]
        served, other = (peer.model.identity.hex()[:8] for peer in status.peers)
        assert f"({other}) and not" in status.peers[1].detail
        assert f"({served}), which is served" in status.peers[1].detail
        for i in range(4):
            asked = request(f"text {i}", token_limit=12)
            assert_right(await generate(those.orchestrator, asked), asked)
        assert those.targets[1].decode_count == 0


async def test_a_target_with_another_context_is_refused_and_says_that() -> None:
    def with_a_larger_context() -> ToyModel:
        return toy(seed=1, eos_bias=NEVER, context=512)

    async with services(target, with_a_larger_context) as those:
        served, other = (await those.orchestrator.status()).peers
        assert [served.state, other.state] == [READY, REFUSED]
        assert "has 512 tokens, and not 256: targets of a pool need the same --ctx" in other.detail
    async with services(target, other_weights) as those:
        assert "--ctx" not in (await those.orchestrator.status()).peers[1].detail


class OtherKernels(ToyModel):
    """A target that computes with other kernels, and so other bits."""

    def describe(self) -> ModelDescription:
        return replace(super().describe(), system_info="toy | AMX = 1 |", kernels="amx: faster")


async def test_exact_targets_with_other_kernels_are_refused_and_say_which() -> None:
    def with_other_kernels() -> ToyModel:
        return OtherKernels(seed=1, eos_bias=NEVER, context=256, order=256, batch_rows=128)

    async with services(target, with_other_kernels) as those:
        served, other = (await those.orchestrator.status()).peers
        assert [served.state, other.state] == [READY, REFUSED]
        assert "computes with the kernels amx (toy | AMX = 1 |)" in other.detail
        assert "targets of a pool need the same --cpu-kernels" in other.detail
        for i in range(4):
            asked = request(f"text {i}", token_limit=12)
            assert_right(await generate(those.orchestrator, asked), asked)
        assert those.targets[1].decode_count == 0


async def test_a_text_never_goes_on_with_other_weights() -> None:
    async with services(target, other_weights) as those:
        asked = request(token_limit=LENGTH)

        async def restart() -> None:
            await those.targets[0].kill()
            await asyncio.sleep(0.3)
            assert those.targets[1].decode_count == 0
            await those.targets[0].start()

        completion = await generate(those.orchestrator, asked, [Interruption(40, restart)])
        assert_right(completion, asked)


async def test_the_other_target_goes_on_when_one_comes_back_as_another_model() -> None:
    async with services(target, target) as those:
        asked = request(token_limit=LENGTH)

        async def change() -> None:
            await those.writing().restart(other_weights)

        completion = await generate(those.orchestrator, asked, [Interruption(40, change)])
        assert_right(completion, asked)
        refused = [each.refused for each in those.pool.targets]
        await eventually(lambda: sum(bool(each.refused) for each in those.pool.targets) == 1)
        assert len(refused) == 2


async def test_new_weights_are_served_once_no_target_has_the_old_ones() -> None:
    async with services(target, target) as those:
        for each in those.targets:
            await each.restart(other_weights)

        def both_serve() -> bool:
            return all(t.is_usable for t in those.pool.targets)

        await eventually(both_serve)
        asked = request(token_limit=12)
        completion = await generate(those.orchestrator, asked)
        assert completion.token_ids == written_alone(other_weights(), asked)


async def test_a_target_that_stops_gets_nothing_new_and_ends_what_it_has() -> None:
    async with services(target, target) as those:
        asked = request(token_limit=LENGTH)

        async def drain() -> None:
            leaving = those.targets.index(those.writing())
            server = those.targets[leaving]._server
            assert server is not None
            await server.set_serving(False)
            await eventually(lambda: not those.pool.targets[leaving].peer.ready)
            for i in range(3):
                new = request(f"text {i}", token_limit=12)
                assert_right(await generate(those.orchestrator, new), new)
            assert those.targets[1 - leaving].decode_count > 0
            assert those.pool.targets[leaving].generation_count == 1

        completion = await generate(those.orchestrator, asked, [Interruption(20, drain)])
        assert_right(completion, asked)
        assert completion.statistics.target_fault_count == 0


def end(leases: Iterable[PeerLease[PooledTarget]]) -> None:
    for each in leases:
        each.end()


async def test_turns_of_a_chat_stay_where_their_prefix_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PooledTarget, "read_seconds", 0.01)  # a toy reads a prompt in one step
    async with services(target, target, pace=0.0) as those:
        first = those.pool.targets[0]

        async def turn(chat: list[int]) -> int:
            """Write a turn; return which target wrote it."""
            before = [each.decode_count for each in those.targets]
            asked = request(prompt_tokens=chat, token_limit=16, n_max=0)
            completion = await generate(those.orchestrator, asked)
            if len(chat) > 64:
                assert completion.statistics.cached_token_count >= len(chat) - 20
            chat += [*completion.token_ids, *prompt(4)]
            [place] = [k for k in (0, 1) if those.targets[k].decode_count > before[k]]
            return place

        one, other = prompt(64), prompt(64, 7)
        assert await turn(one) == 0
        elsewhere = [PeerLease(first) for _ in range(3)]  # somebody writes there, for the moment
        assert await turn(other) == 1
        end(elsewhere)
        for _ in range(3):
            assert [await turn(one), await turn(other)] == [0, 1]


async def test_a_text_goes_on_at_another_target_when_one_has_no_room() -> None:
    async with services(target, target, pace=0.03) as those:
        full, free = those.pool.targets
        # It looks free, and every sequence is taken by texts that another orchestrator writes.
        async with running(OrchestratorProcess(full.address)) as another:
            await another.until_ready()
            long = [request(f"text {i}", token_limit=200, n_max=0) for i in range(4)]
            others = [asyncio.create_task(generate(another, each)) for each in long]
            await eventually(lambda: another.pool.targets[0].generation_count == 4)
            await asyncio.sleep(0.5)
            elsewhere = [PeerLease(free) for _ in range(3)]
            asked = request(token_limit=40, n_max=0)
            writing = asyncio.create_task(generate(those.orchestrator, asked))
            await eventually(lambda: full.generation_count == 1)
            end(elsewhere)
            await eventually(lambda: free.generation_count == 1)
            assert full.generation_count == 0 and full.is_full
            assert_right(await writing, asked)
            for each in others:
                each.cancel()
            await asyncio.wait(others)


async def test_another_configured_draft_goes_on_when_one_is_killed() -> None:
    async with services(target, drafts=2) as those:
        asked = request(token_limit=LENGTH)

        async def kill() -> None:
            leased = [draft.generation_count for draft in those.pool.drafts].index(1)
            await those.drafts[leased].kill()

        completion = await generate(those.orchestrator, asked, [Interruption(40, kill)])
        assert_right(completion, asked)
        drafted = completion.origins[60:].count(messages.TOKEN_ORIGIN_DRAFTED)
        assert drafted > 50


async def test_texts_leave_a_draft_of_which_nothing_comes() -> None:
    async with services(target, drafts=2, draft_seconds=0.05) as those:
        silent, other = those.pool.drafts
        # So that it is taken first.
        silent.rates.token_time, other.rates.token_time = Mean(1e-4), Mean(1e-1)
        gate = Gate(those.drafts[0].model)
        for i in range(12):  # of which one may end before anything is ordered
            asked = request(f"text {i}", token_limit=40)
            assert_right(await generate(those.orchestrator, asked), asked)
        await gate.open()
        assert silent.record.silent_count == 4, "later texts went to the other one"


async def test_a_draft_learns_the_same_of_every_target_of_equal_weights() -> None:
    async with services(target, target, drafts=1) as those:
        [draft] = those.pool.drafts
        one, other = (draft.pair_beside(each) for each in those.pool.targets)
        assert one is not other and one.costs is not other.costs
        assert one.rates is other.rates


async def test_http_answers_as_before_while_one_target_is_gone() -> None:
    async with (
        services(target, target) as those,
        serving(those.orchestrator.orchestrator) as url,
        httpx.AsyncClient(timeout=PATIENCE) as client,
    ):
        body = {"prompt": "rain", "max_tokens": 8, "temperature": 0}
        answers = [(await client.post(f"{url}/v1/completions", json=body)).json()]
        await those.targets[0].kill()
        await eventually(lambda: not those.pool.targets[0].peer.ready)
        assert (await client.get(f"{url}/health")).status_code == 200
        answers.append((await client.post(f"{url}/v1/completions", json=body)).json())
        texts, prints = (
            {answer["choices"][0]["text"] for answer in answers},
            {answer["system_fingerprint"] for answer in answers},
        )
        assert len(texts) == len(prints) == 1
        shown = (await client.get(f"{url}/status")).json()["peers"]
        states = [peer["state"] for peer in shown]
        assert [state == "PEER_STATE_READY" for state in states] == [False, True]
        assert "outrider_target_used" in (await client.get(f"{url}/metrics")).text
        await those.targets[1].kill()
        await eventually(lambda: not those.pool.ready)
        assert (await client.get(f"{url}/health")).status_code == 503


# --- names ---


class Records:
    """A resolver whose answers change."""

    def __init__(self, *ips: str) -> None:
        self.ips = list(ips)

    async def __call__(self, host: str, port: int) -> list[str]:
        return self.ips


@contextlib.asynccontextmanager
async def behind_a_name(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[list[ModelProcess], Pool]]:
    """Run two targets on one port of two addresses, and a pool that knows only their name."""
    monkeypatch.setattr("orchestrator.names.DESCRIBE_SECONDS", 0.05)
    monkeypatch.setattr("orchestrator.names.may_have_records", lambda address: True)
    async with running(ModelProcess(TARGET, target, pace=PACE)) as one:
        port = one.address.rpartition(":")[2]
        second = ModelProcess(TARGET, target, pace=PACE)
        second.address = f"127.0.0.2:{port}"
        async with running(second):
            peer = DialledPeer("target", f"localhost:{port}")
            pool = Pool([peer])
            pool.names = [Name(peer, resolve=records)]
            pool.start()
            yield [one, second], pool
            await pool.stop()


def addresses(pool: Pool) -> list[str]:
    return sorted(each.address.rpartition(":")[0] for each in pool.targets if each.is_usable)


async def test_each_of_several_records_is_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records("127.0.0.1", "127.0.0.2")
    async with behind_a_name(records, monkeypatch) as (_, pool):
        await eventually(lambda: addresses(pool) == ["127.0.0.1", "127.0.0.2"])
        records.ips = ["127.0.0.2"]
        await eventually(lambda: addresses(pool) == ["127.0.0.2"])
        assert len(pool.targets) == 1
        records.ips = []  # the resolver is away
        await asyncio.sleep(0.2)
        assert addresses(pool) == ["127.0.0.2"]
        records.ips = ["127.0.0.1", "127.0.0.2"]
        await eventually(lambda: addresses(pool) == ["127.0.0.1", "127.0.0.2"])


async def test_a_name_with_one_record_is_dialled_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with behind_a_name(Records("127.0.0.1"), monkeypatch) as (_, pool):
        await eventually(lambda: addresses(pool) == ["localhost"])
        peer = pool.target
        await asyncio.sleep(0.2)
        assert pool.target is peer and pool.is_single


async def test_a_target_whose_record_is_gone_ends_what_it_has() -> None:
    async with services(target, target) as those:
        asked = request(token_limit=LENGTH)

        async def leave() -> None:
            leaving = those.targets.index(those.writing())
            pool = those.pool
            entry = pool.targets[leaving]
            pool.leave(entry.peer)
            assert entry in pool.targets and not entry.is_usable
            new = request("another", token_limit=12)
            assert_right(await generate(those.orchestrator, new), new)
            assert those.targets[1 - leaving].decode_count > 0

        completion = await generate(those.orchestrator, asked, [Interruption(20, leave)])
        assert_right(completion, asked)
        assert completion.statistics.target_fault_count == 0
        await eventually(lambda: len(those.pool.targets) == 1)


async def test_new_weights_are_served_once_the_old_ones_have_no_record() -> None:
    async with services(target, other_weights) as those:
        old, new = those.pool.targets
        asked = request(token_limit=LENGTH)

        async def leave() -> None:
            assert new.refused
            those.pool.leave(old.peer)
            another = request("another", token_limit=12)
            completion = await generate(those.orchestrator, another)
            assert completion.token_ids == written_alone(other_weights(), another)
            assert old.generation_count == 1

        completion = await generate(those.orchestrator, asked, [Interruption(20, leave)])
        assert_right(completion, asked)
        await eventually(lambda: those.pool.targets == [new])


def test_addresses_and_this_machine_are_no_names() -> None:
    named = ("targets:1", "plain://targets.outrider.svc:50060")
    assert all(map(may_have_records, named))
    unnamed = ("127.0.0.1:1", "[::1]:1", "localhost:1", "plain://10.0.0.1:1")
    assert not any(map(may_have_records, unnamed))


@pytest.mark.fault(
    "others",
    "Several texts at once, and targets that pad the rows of each text (`--numerics exact`)",
    before="the rows of up to four texts were counted as one padded row: they went to one target, "
    "while another had none",
    now="each text's rows are padded by themselves, as the target does it",
)
async def test_each_text_at_a_target_that_pads_costs_rows_of_its_own() -> None:
    target = PooledTarget(DialledPeer("target", "127.0.0.1:9"))
    target.costs.table = target._loaded = CostTable([(2, 0.01), (4, 0.02), (8, 0.04)])
    seconds = []
    for count in range(3):
        target.leases = {PeerLease(target) for _ in range(count)}
        seconds.append(target.token_seconds)
    assert seconds == pytest.approx([0.01, 0.02, 0.03])
    await target.peer.close()
