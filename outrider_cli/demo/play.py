"""Runs the demo: three requests to real services, each without and with drafts, and a verdict."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from outrider.client import Delta, FinishReason, Logprob, OutriderClient, Request
from outrider.messages import LogprobOptions
from outrider.model_service.config import ModelOptions
from outrider.processes import ANY_PORT, Child, watch
from outrider.sampling import SamplingParameters
from outrider.speculation import MODEL
from outrider_cli import COMMAND
from outrider_cli.delayed_link import delayed_link
from outrider_cli.demo.download import NotFetched, fetch_model
from outrider_cli.demo.questions import (
    ROUND_TRIP_MS,
    DemoRequest,
    Row,
    Run,
    common_count,
    parting,
    requests_for,
)
from outrider_cli.demo.show import near_tie, open_show
from outrider_cli.generate.execute import wait_for_pair
from outrider_cli.render import Transcript, Words
from outrider_cli.screen import Progress, note
from outrider_cli.services.local import HostedModel, LocalPlan, local_services
from outrider_cli.services.pair import BUNDLED_DRAFT, choose_draft, choose_target

_RUNS = 5  # pairs of each request at most; their range has the true median in 15 of 16 cases
_WARM_UP_TOKENS = 24  # tokens of the run that warms up
_LONGEST_PART = 0.4  # of a request's time, for its first run; what is longer is cut
_POLL_SECONDS = 0.05  # s; between two looks at the status
_LEAST_SHARE = 1 / 8  # of the time, for a request, however long the models took to load
_STOP_SECONDS = 3.0  # kept for stopping the services
_GREEDY = SamplingParameters(temperature=0.0)


@dataclass(frozen=True, slots=True)
class _Cast:
    """Which models play: options of the draft that is here, and of the one over the link."""

    target: Path
    near_draft: tuple[str, ...]  # none: the orchestrator drafts from the text itself
    remote_draft: tuple[str, ...]


async def run_demo(seconds: float) -> None:
    """Show the demo; it takes so long at most, beside the download."""
    with Progress() as progress:
        cast = await _choose(progress)
        end = time.monotonic() + seconds - _STOP_SECONDS
        plan = LocalPlan(
            target=HostedModel(cast.target, ModelOptions(sessions=1)),
            draft=None,
            orchestrator=("--accept-drafts",),
        )
        async with local_services(plan) as services:
            progress.say("starting the services")
            address = await services.start()
            async with OutriderClient(address) as client:
                play = _Play(cast, address, client, progress, end, _LEAST_SHARE * seconds)
                await services.watch(play.run())


async def _choose(progress: Progress) -> _Cast:
    try:
        target = await fetch_model(progress.say)
    except NotFetched as reason:
        progress.clear()
        note(f"no SmolLM2 ({reason}); the bundled pair writes nonsense in its place")
        words = (f"--model={choose_draft(None, BUNDLED_DRAFT)}", "--nice=19")
        return _Cast(choose_target(None), words, words)
    # No model with the same vocabulary is known: a remote draft goes by the text, too.
    return _Cast(target, (), ("--drafters=lookup",))


class _Play:
    """The three requests."""

    def __init__(
        self,
        cast: _Cast,
        address: str,
        client: OutriderClient,
        progress: Progress,
        end: float,
        least_seconds: float,
    ) -> None:
        """`end` is when it should be over; each request has `least_seconds` all the same."""
        self._cast = cast
        self._address = address
        self._client = client
        self._progress = progress
        self._end = end
        self._least_seconds = least_seconds
        self._show = open_show()

    async def run(self) -> None:
        """Run all requests, one after the other, and say what they took."""
        status = await wait_for_pair(self._client, self._progress)
        target = status.peer("target")
        assert target is not None and target.model is not None
        requests = requests_for(target.model.has_chat_template)
        self._progress.clear()
        self._show.open(target.model)
        rows = []
        for i, request in enumerate(requests):
            left = self._end - time.monotonic()
            seconds = max(self._least_seconds, left / (len(requests) - i))
            async with AsyncExitStack() as stack:
                draft = await self._enter_draft(stack, request.is_linked)
                work = self._run_request(request, f"{i + 1} of {len(requests)}", seconds)
                rows.append(await watch(work, draft))
        self._show.close(rows)

    async def _enter_draft(self, stack: AsyncExitStack, is_linked: bool) -> Sequence[Child]:
        """Have the draft of a request join; return its process, if it needs one."""
        words = self._cast.remote_draft if is_linked else self._cast.near_draft
        if not words:
            return ()
        link = delayed_link(self._address, ROUND_TRIP_MS / 1e3) if is_linked else None
        address = await stack.enter_async_context(link or nullcontext(self._address))
        self._progress.say("a draft joins")
        return (await stack.enter_async_context(_joined(words, address, self._client)),)

    async def _run_request(self, request: DemoRequest, place: str, seconds: float) -> Row:
        end = time.monotonic() + seconds
        prompt = await self._prompt(request)
        self._progress.say("warming up")
        await self._generate(request, prompt, _WARM_UP_TOKENS, True, seconds * _LONGEST_PART)
        self._progress.clear()
        row = Row(request)
        cut = (end - time.monotonic()) * _LONGEST_PART
        with self._show.scene(place, request) as scene:
            plain = await self._generate(
                request, prompt, request.token_limit, False, cut, scene.plain
            )
            scene.finish_plain(plain)
            limit = max(1, len(plain.token_ids))
            drafted = await self._generate(request, prompt, limit, True, cut, scene.drafted)
            scene.finish_drafted(drafted)
        row.pairs.append((plain, drafted))
        longest = plain.total_seconds + drafted.total_seconds
        while len(row.pairs) < _RUNS and time.monotonic() + longest < end:
            self._progress.say(f"measuring the same again, {len(row.pairs) + 1} of {_RUNS}")
            plain = await self._generate(request, prompt, limit, False, cut)
            drafted = await self._generate(request, prompt, limit, True, cut)
            row.pairs.append((plain, drafted))
        self._progress.clear()
        row.near_tie = await self._explain_parting(row)
        self._show.end_of_request(row)
        return row

    async def _prompt(self, request: DemoRequest) -> str:
        if not request.is_chat:
            return request.prompt
        return await self._client.apply_template([{"role": "user", "content": request.prompt}])

    async def _generate(
        self,
        request: DemoRequest,
        prompt: str,
        limit: int,
        drafts: bool,
        seconds: float,
        show: Callable[[Words], None] = lambda words: None,
    ) -> Run:
        """Generate once, without anything that an earlier run read; cut it after so long."""
        options = Request(
            prompt,
            token_limit=limit,
            sampling=_GREEDY,
            parse_special=request.is_chat,
            ignore_cached_prefix=True,
            enabled=drafts,
            drafters=frozenset({MODEL}) if request.is_linked else None,
        )
        begin = time.monotonic()
        transcript, times = Transcript(), list[tuple[float, int]]()
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(seconds),
                aclosing(self._client.generate(options)) as events,
            ):
                async for event in events:
                    transcript.add(event)
                    if isinstance(event, Delta) and event.token_ids:
                        times.append((time.monotonic(), len(event.token_ids)))
                    for words in transcript.words(event):
                        show(words)
        return _made_run(transcript, times, time.monotonic() - begin)

    async def _explain_parting(self, row: Row) -> str:
        """Return where two texts part and how near the two tokens are; empty where none do."""
        pair = parting(row)
        if pair is None:
            return ""
        plain, drafted = pair
        count = common_count(plain.token_ids, drafted.token_ids)
        # Once more, since the probabilities are of decodes of the same sizes as without drafts.
        options = Request(
            plain.prompt_token_ids,
            token_limit=count + 1,
            sampling=_GREEDY,
            ignore_cached_prefix=True,
            enabled=False,
            logprobs=LogprobOptions(top_count=2),
        )
        found: list[Logprob] = []
        async with aclosing(self._client.generate(options)) as events:
            async for event in events:
                found += event.logprobs if isinstance(event, Delta) else ()
        there = found[count].alternatives if count < len(found) else ()
        return near_tie(count, [value for _, value in there])


def _made_run(
    transcript: Transcript, times: Sequence[tuple[float, int]], total_seconds: float
) -> Run:
    started, finished = transcript.started, transcript.finished
    sources = finished.statistics.sources if finished else ()
    return Run(
        prompt_token_ids=started.prompt_token_ids if started else (),
        token_ids=tuple(transcript.token_ids),
        has_ended=finished is not None and finished.reason is FinishReason.END_OF_TEXT,
        total_seconds=total_seconds,
        seconds=times[-1][0] - times[0][0] if times else 0.0,
        later_count=sum(count for _, count in times[1:]),
        accepted=Counter({each.name: each.accepted_token_count for each in sources}),
        drafted_count=sum(each.drafted_token_count for each in sources),
    )


@asynccontextmanager
async def _joined(
    words: Sequence[str], address: str, client: OutriderClient
) -> AsyncIterator[Child]:
    """Have a draft dial in, and leave at the end."""
    await _wait_for_draft(client, False)  # the last one may not have been missed yet
    draft = await Child.start(COMMAND, "draft", ANY_PORT, (*words, f"--join={address}"))
    try:
        await watch(_wait_for_draft(client, True), [draft])
        yield draft
    finally:
        await draft.stop()


async def _wait_for_draft(client: OutriderClient, is_there: bool) -> None:
    while True:
        if (await client.status()).speculating is is_there:
            return
        await asyncio.sleep(_POLL_SECONDS)
