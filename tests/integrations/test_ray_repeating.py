"""A text that continues at another replica, whatever was seen of it and however it comes again."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from outrider.v1 import orchestrator_service_pb2 as messages
from outrider_ray.repeating import Differs, SeenText

PROMPT, IDENTITY = [5, 6, 7], b"weights"
DRAFTED, PLAIN = messages.TOKEN_ORIGIN_DRAFTED, messages.TOKEN_ORIGIN_PLAIN


class Text:
    """A completion: token i has id 100 + i and writes one character; one token is control."""

    def __init__(self, count: int, choice: int = 0, control_at: int = -1) -> None:
        self.ids = [100 + i for i in range(count)]
        self.units = [chr(0x3B1 + i) for i in range(count)]
        self.control_at, self.choice = control_at, choice

    def written(self, random: Random) -> Iterator[messages.GenerateResponse]:
        """Yield it in random pieces, the text up to three characters after the ids."""
        at, shown = 0, 0
        while at < len(self.ids) or shown < len(self.ids):
            to = min(len(self.ids), at + random.randint(0, 5))
            upto = len(self.ids) if to == len(self.ids) else max(shown, to - random.randint(0, 3))
            response = messages.GenerateResponse(choice_index=self.choice)
            response.delta.token_ids.extend(self.ids[at:to])
            response.delta.origins.extend(PLAIN for _ in self.ids[at:to])
            for each in range(at, to):
                response.delta.logprobs.add(log_probability=-float(each))
            self._show(response.delta, shown, upto, random)
            at, shown = to, upto
            yield response
        response = messages.GenerateResponse(choice_index=self.choice)
        response.finished.SetInParent()
        yield response

    def _show(self, delta: messages.GenerationDelta, begin: int, end: int, random: Random) -> None:
        run = ""
        for i in range(begin, end):
            if i == self.control_at:
                if run:
                    delta.pieces.add(text=run)
                delta.pieces.add(text="<tool>", control=True)
                run = ""
                continue
            run += self.units[i]
            if random.random() < 0.3:
                delta.pieces.add(text=run)
                run = ""
        if run:
            delta.pieces.add(text=run)


def started(identity: bytes = IDENTITY) -> messages.GenerateResponse:
    response = messages.GenerateResponse()
    response.started.prompt_token_ids.extend(PROMPT)
    response.started.model_identity = identity
    response.started.model_name = "large"
    response.started.seed = 41
    return response


def collected(
    responses: list[messages.GenerateResponse], choice: int = 0
) -> tuple[list[int], list[float], list[str], int]:
    """Return ids, log probabilities, units of text and how often it was finished."""
    ids: list[int] = []
    odds: list[float] = []
    units: list[str] = []
    ends = 0
    for response in responses:
        if response.choice_index != choice:
            continue
        ids += response.delta.token_ids
        odds += [each.log_probability for each in response.delta.logprobs]
        for piece in response.delta.pieces:
            units += [piece.text] if piece.control else [*piece.text]
        ends += response.HasField("finished")
    return ids, odds, units, ends


def shown_over(seen: SeenText, text: Text, random: Random, losses: int) -> list:
    shown = []
    for attempt in range(losses + 1):
        whole = [started(), *text.written(random)]
        stop = len(whole) if attempt == losses else random.randrange(len(whole) + 1)
        for response in whole[:stop]:
            if (new := seen.take(response)) is not None:
                shown.append(new)
        seen.repeat(messages.GenerateRequest())
    return shown


@pytest.mark.parametrize("losses", [0, 1, 3])
def test_a_client_sees_every_token_and_character_once_however_often_a_replica_is_lost(losses: int):
    for number in range(150):
        random = Random(1000 * losses + number)
        text = Text(random.randint(0, 30), control_at=random.choice([-1, 4]))
        seen = SeenText()
        ids, odds, units, ends = collected(shown_over(seen, text, random, losses))
        wanted = ["<tool>" if i == text.control_at else u for i, u in enumerate(text.units)]
        assert ids == text.ids and units == wanted and ends == 1 == seen.finished_count
        assert odds == [-float(i) for i in range(len(ids))]


def test_what_is_asked_for_again_is_the_same_text_of_the_same_model():
    seen, request = SeenText(), messages.GenerateRequest(prompt_text="x", token_limit=9)
    assert seen.repeat(request) == request  # nothing was seen, so anything may come
    seen.take(started())
    again = seen.repeat(request)
    assert (again.seed, again.model.identity, again.model.name) == (41, IDENTITY, "large")
    assert (again.prompt_text, again.token_limit) == ("x", 9)
    assert not request.HasField("seed")


def test_a_text_that_comes_out_otherwise_is_not_continued():
    text, other = Text(9), Text(9)
    other.ids[3] = 7
    seen = SeenText()
    for response in [started(), *text.written(Random(1))][:-1]:
        seen.take(response)
    seen.repeat(messages.GenerateRequest())
    with pytest.raises(Differs):
        for response in [started(), *other.written(Random(2))]:
            seen.take(response)


def test_a_text_that_ends_sooner_or_is_of_another_model_is_not_continued():
    for again in ([started(), *Text(4).written(Random(2))], [started(b"others")]):
        seen = SeenText()
        for response in [started(), *Text(9).written(Random(1))][:-1]:
            seen.take(response)
        seen.repeat(messages.GenerateRequest())
        with pytest.raises(Differs):
            for response in again:
                seen.take(response)


def test_several_completions_are_continued_each_for_itself():
    texts = [Text(12, choice=0), Text(7, choice=1)]

    def written(random: Random) -> list[messages.GenerateResponse]:
        streams = [text.written(random) for text in texts]
        mixed = [started()]
        while streams:
            stream = random.choice(streams)
            response = next(stream, None)
            if response is None:
                streams.remove(stream)
            else:
                mixed.append(response)
        return mixed

    for number in range(60):
        random = Random(number)
        seen, shown = SeenText(), []
        first = written(random)
        for response in first[: random.randrange(len(first))]:
            shown.append(seen.take(response))
        seen.repeat(messages.GenerateRequest())
        shown += [seen.take(response) for response in written(random)]
        found = [each for each in shown if each is not None]
        for text in texts:
            ids, _, units, ends = collected(found, text.choice)
            assert (ids, units, ends) == (text.ids, text.units, 1)
        assert seen.finished_count == 2


def test_reports_and_the_prompts_probabilities_come_once():
    def written() -> list[messages.GenerateResponse]:
        prompt = messages.GenerateResponse()
        for each in range(4):
            prompt.delta.prompt_logprobs.add(log_probability=-float(each))
        report = messages.GenerateResponse()
        report.delta.report.round = 1
        text = messages.GenerateResponse()
        text.delta.token_ids.extend([1, 2])
        text.delta.origins.extend([DRAFTED, PLAIN])
        return [started(), prompt, report, text]

    seen = SeenText()
    first = [seen.take(response) for response in written()]
    assert all(each is not None for each in first)
    seen.repeat(messages.GenerateRequest())
    assert [seen.take(response) for response in written()] == [None] * 4
