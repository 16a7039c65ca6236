"""Tries a draft with its target on prompts that it never learned from: does it pay?

Two targets run beside each other, one with the draft and one alone, and write each text in turn, so
that a slow minute hits both. What is accepted of drafts of three tokens is counted apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

from outrider.client import Finished, OutriderClient, Request, Statistics
from outrider.errors import InvalidConfig
from outrider.model_service.config import ModelOptions
from outrider.sampling import SamplingParameters
from outrider.speculation import MODEL, HeadKind, Policy
from outrider_cli.intervals import Estimate, median_of
from outrider_cli.screen import Progress
from outrider_cli.services.local import HostedModel, LocalPlan
from outrider_teach.prompts import GROUPS, Prompt, PromptAt, is_held_out
from outrider_teach.writing import PATIENT, TEMPERATURES, started, to_request

LENGTH = 3  # tokens of a draft whose acceptance is said; llama-server's default
_TOKENS = 128  # of a text
_FEWEST = 16  # tokens of a text whose speed counts
_MOST_LOOKED = 100_000  # prompts, for some that are held out


@dataclass(frozen=True, slots=True)
class Tried:
    """One prompt at one temperature."""

    group: str
    temperature: float
    drafted: int
    accepted: int
    """Of drafts of three tokens."""
    speedup: float | None
    """Tokens a second over the target's alone; None for a text that is too short."""


@dataclass(frozen=True, slots=True)
class Line:
    """What was measured of several prompts."""

    name: str
    count: int
    acceptance: dict[float, float]
    """By temperature; none where nothing was drafted."""
    speedup: dict[float, Estimate]


def held_out_prompts(prompts: PromptAt, count: int, end: int | None) -> list[Prompt]:
    """Return the first prompts that are held out, as many of each group, and no text twice."""
    found: dict[str, dict[str, Prompt]] = {}
    for number in range(_MOST_LOOKED if end is None else end):
        prompt = prompts(number)
        group = found.setdefault(prompt.group, {})
        most = count if end is not None else -(-count // len(GROUPS))
        if is_held_out(prompt.text) and len(group) < most:
            group[prompt.text] = prompt
        if sum(map(len, found.values())) >= count:
            break
    return [prompt for group in found.values() for prompt in group.values()][:count]


async def try_draft(
    target: HostedModel,
    draft: Path,
    prompts: Sequence[Prompt],
    progress: Progress,
) -> list[Tried]:
    """Return what the draft does for each prompt, greedily and at temperature .8.

    Raises InvalidConfig where the target does not draft with it.
    """
    beside = HostedModel(draft, ModelOptions(context=target.options.context))
    alone = LocalPlan(target=target, draft=None, own_draft=False, orchestrator=PATIENT)
    with_draft = LocalPlan(target=target, draft=beside, orchestrator=PATIENT)
    async with (
        started(alone, progress) as (others, plain),
        started(with_draft, progress) as (services, client),
    ):
        has_template = await _check_drafts(client, draft)
        trial = _Trial(client, plain, has_template)
        work = trial.run_all(prompts, progress)
        return await services.watch(others.watch(work))


async def _check_drafts(client: OutriderClient, draft: Path) -> bool:
    """Return whether a target has a chat template. Raises InvalidConfig where it has no draft."""
    target = (await client.status()).peer("target")
    if target is None or target.model is None or not target.model.own_draft:
        raise InvalidConfig("out", f"the target does not draft with {draft}: see outrider doctor")
    return target.model.has_chat_template


class _Trial:
    """Writes texts with and without the draft."""

    def __init__(self, client: OutriderClient, plain: OutriderClient, has_template: bool) -> None:
        self._client, self._plain = client, plain
        self._has_template = has_template
        self._count = 0

    async def run_all(self, prompts: Sequence[Prompt], progress: Progress) -> list[Tried]:
        """Return what was measured, after one text that is not counted: costs are learned in it."""
        found: list[Tried] = []
        await self._run(prompts[0], TEMPERATURES[0])
        total = len(prompts) * len(TEMPERATURES)
        for prompt in prompts:
            for temperature in TEMPERATURES:
                progress.say(f"trying it, {len(found) + 1} of {total}")
                found.append(await self._run(prompt, temperature))
        progress.clear()
        return found

    async def _run(self, prompt: Prompt, temperature: float) -> Tried:
        asked = await to_request(self._plain, prompt, self._has_template)
        request = replace(
            asked,
            token_limit=_TOKENS,
            sampling=SamplingParameters(temperature=temperature),
            seed=self._count,
            truncate_prompt=True,
        )
        three = replace(
            request,
            policy=Policy.FIXED,
            n_max=LENGTH,
            drafters=frozenset({HeadKind.EAGLE3.value, MODEL}),
        )
        drafted = await _statistics(self._client, three)
        # Each has read the prompt before its speed is measured, and goes first as often.
        quick, slow = (self._client, request), (self._plain, request)
        order = (quick, slow) if self._count % 2 else (slow, quick)
        measured = {id(pair): await _statistics(*pair) for pair in order}
        self._count += 1
        return Tried(
            prompt.group,
            temperature,
            drafted.drafted_token_count,
            drafted.accepted_token_count,
            _speedup(measured[id(quick)], measured[id(slow)]),
        )


async def _statistics(client: OutriderClient, request: Request) -> Statistics:
    async with aclosing(client.generate(request)) as events:
        async for event in events:
            if isinstance(event, Finished):
                return event.statistics
    raise AssertionError("a generation ends with its statistics")


def _speedup(quick: Statistics, slow: Statistics) -> float | None:
    if min(quick.generated_token_count, slow.generated_token_count) < _FEWEST:
        return None
    if quick.tokens_per_second is None or not slow.tokens_per_second:
        return None
    return quick.tokens_per_second / slow.tokens_per_second


# --- what is said of it ---


def lines_of(tried: Sequence[Tried]) -> list[Line]:
    """Return a line for each group of prompts, and one for all."""
    groups = list(dict.fromkeys(each.group for each in tried))
    parts = [(name, [each for each in tried if each.group == name]) for name in groups]
    return [_line(name, part) for name, part in [*parts, ("all", list(tried))]]


def _line(name: str, tried: Sequence[Tried]) -> Line:
    acceptance: dict[float, float] = {}
    speedup: dict[float, Estimate] = {}
    temperatures = sorted({each.temperature for each in tried})
    for temperature in temperatures:
        part = [each for each in tried if each.temperature == temperature]
        if drafted := sum(each.drafted for each in part):
            acceptance[temperature] = sum(each.accepted for each in part) / drafted
        if (estimate := median_of(each.speedup for each in part)) is not None:
            speedup[temperature] = estimate
    return Line(name, len(tried) // len(temperatures), acceptance, speedup)


def table(lines: Sequence[Line]) -> list[str]:
    """Return what was measured, for people: acceptance at n 3, and speed over the target alone."""
    temperatures = sorted({t for line in lines for t in (*line.acceptance, *line.speedup)})
    heads = [f"{f'T {t:g}':>8}" for t in temperatures]
    wide = [f"{f'T {t:g}':>20}" for t in temperatures]
    shown = [f"{'':20}accepted of 3{'':{8 * len(heads) - 13}}   speed over the target alone"]
    shown.append(f"{'prompts':<10}{'count':>8}  {''.join(heads)}   {''.join(wide)}")
    for line in lines:
        accepted = [_accepted(line.acceptance.get(t)) for t in temperatures]
        speed = [_speed(line.speedup.get(t)) for t in temperatures]
        shown.append(f"{line.name:<10}{line.count:>8}  {''.join(accepted)}   {''.join(speed)}")
    return shown


def _accepted(value: float | None) -> str:
    return f"{'-' if value is None else f'{value:.3f}':>8}"


def _speed(value: Estimate | None) -> str:
    text = "-" if value is None else f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"
    return f"{text:>20}"
