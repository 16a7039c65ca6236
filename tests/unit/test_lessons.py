"""When a draft is sent a vocabulary again, and which answers are believed."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import grpc
import pytest

from orchestrator import lessons
from orchestrator.first_estimates import process_of
from orchestrator.lessons import Lesson
from orchestrator.peers import DialledPeer, Hosted
from outrider.core.health import LONGEST_EJECTION
from outrider.descriptions import check_learned
from outrider.errors import InvalidRequest, PeerUnavailable
from outrider.v1 import common_pb2 as common
from outrider.v1 import draft_service_pb2 as messages
from outrider.vocabulary_pieces import PeerVocabulary

GOOD = messages.LearnVocabularyResponse(
    level=messages.TRANSLATION_LEVEL_TOKENS, shared_token_count=3, shared_mass=0.5
)


def hosted(*texts: bytes) -> Hosted:
    described = common.Vocabulary(type=2, token_count=len(texts), bos_token_id=-1)
    model = common.GetModelResponse(identity=bytes(32), vocabulary=described, translates=True)
    return Hosted(model, PeerVocabulary(list(texts), list(texts), {}, 1))


class Pupil:
    """A draft that answers each lesson with the next of these."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.count = 0

    async def teach(self, key: bytes, target: Hosted) -> messages.LearnVocabularyResponse:
        self.count += 1
        answer = self.answers.pop(0) if self.answers else GOOD
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, messages.LearnVocabularyResponse)
        return answer


def refusing(code: grpc.StatusCode) -> Any:
    async def call(*_: Any, **__: Any) -> None:
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "no")

    return call


async def taught(pupil: Pupil, monkeypatch: pytest.MonkeyPatch, count: int = 1) -> list[float]:
    """Begin a lesson `count` times; return the pauses between what was sent."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def paused(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(lessons.asyncio, "sleep", paused)
    lesson, draft, target = Lesson(pupil, False), hosted(b"a", b"b"), hosted(b"a", b"b", b"c")
    target.model.vocabulary.type = 1
    for _ in range(count):
        lesson.begin(draft, target)
        for _ in range(50):
            await sleep(0)
    return pauses


@pytest.mark.fault(
    "hang",
    "a draft that does not learn a vocabulary",
    before="all of it was sent again each second, for ever",
    now="the pauses grow to a minute, and what was refused is not sent again to the same process",
)
async def test_what_failed_is_sent_again_after_longer_and_longer_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pupil = Pupil(*[PeerUnavailable("it is away")] * 12)
    pauses = await taught(pupil, monkeypatch)
    longest = [min(LONGEST_EJECTION, 0.1 * 2**i) for i in range(12)]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, longest, strict=True))


async def test_what_was_learned_is_logged_in_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await taught(Pupil(GOOD), monkeypatch)
    [learned] = [each for each in caplog.records if each.message == "draft translates"]
    assert learned.__dict__["fields"]["translation"] == "token"


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "UNIMPLEMENTED"])
async def test_what_was_refused_is_not_sent_again(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = DialledPeer("draft", "127.0.0.1:1")
    monkeypatch.setattr(peer.stub, "LearnVocabulary", refusing(grpc.StatusCode[code]))
    with pytest.raises(InvalidRequest) as caught:
        await peer.teach(bytes(32), hosted(b"a"))
    await peer.close()
    pupil = Pupil(caught.value)
    assert await taught(pupil, monkeypatch, count=3) == []
    assert pupil.count == 1


WRONG: list[dict[str, Any]] = [
    {"level": 7},
    {"level": messages.TRANSLATION_LEVEL_UNSPECIFIED},
    {"shared_mass": math.nan},
    {"shared_mass": 1.5},
    {"shared_token_count": -1},
    {"differences": "x" * 1025},
]


@pytest.mark.parametrize("wrong", WRONG)
async def test_an_answer_that_cannot_be_is_not_taken_in(
    wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = messages.LearnVocabularyResponse()
    answer.CopyFrom(GOOD)
    answer.MergeFrom(messages.LearnVocabularyResponse(**wrong))
    if not wrong.get("level", 1):
        answer.ClearField("level")
    check_learned(GOOD)
    with pytest.raises(InvalidRequest):
        check_learned(answer)
    pupil = Pupil(answer)
    await taught(pupil, monkeypatch, count=2)
    assert pupil.count == 1


def test_a_draft_that_learned_a_vocabulary_is_the_sameprocess_of() -> None:
    before, after = hosted(b"a").model, hosted(b"a").model
    after.known_vocabulary_keys.append(bytes(32))
    assert process_of(before) == process_of(after)
