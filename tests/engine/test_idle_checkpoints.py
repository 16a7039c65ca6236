"""What a session that goes idle keeps, where memory is not cut: its text, and nothing rejected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outrider.engine.host import EngineHost
from outrider.engine.hosting import HostOptions
from outrider.engine.model import Numerics, Rollback
from outrider.messages import Answer, Form, Round, Rule, SessionParameters, Span
from outrider.sampling import GREEDY
from target_service.verifier import Verifier
from tests.support.toy import ToyModel

TEXT = [0, *range(4, 24)]
SESSION = bytes(16)
PATIENCE = 10.0


class Saving(ToyModel):
    """A toy that notes which lengths it is asked to remember."""

    saved: list[int]

    def checkpoint(self, sequence: int) -> None:
        """Remember, and note."""
        self.saved.append(len(self.held(sequence)))
        super().checkpoint(sequence)


@contextmanager
def running() -> Iterator[tuple[EngineHost, Saving]]:
    model = Saving(rollback=Rollback.CHECKPOINTS, pad_multiple=1)
    model.saved = []
    host = EngineHost(lambda: model, HostOptions(numerics=Numerics.NATIVE))
    host.start().result(PATIENCE)
    yield host, model
    host.stop()


def verify(host: EngineHost, model: ToyModel, draft: list[int]) -> list[int]:
    """Return the text after a round with this draft."""
    opening: dict[str, Any] = {
        "attempt": 1,
        "rule": Rule.MATCH,
        "sampling": GREEDY,
        "seed": 1,
        "choice": 0,
    }
    parameters = SessionParameters(
        session_id=SESSION, prompt_count=len(TEXT), token_limit=40, vocabulary=64, **opening
    )
    answers: list[Answer] = []
    verifier = Verifier(model, parameters)
    round_ = Round(1, Span(0, TEXT), draft, Form.SAMPLED)
    host.submit(
        SESSION, lambda lease: verifier.verify(lease, round_, answers.append)
    ).future.result(PATIENCE)
    return [*TEXT, *answers[0].rows.sampled[:1]]


def test_no_rejected_token_is_kept_after_the_last_answer() -> None:
    with running() as (host, model):
        host.pin(SESSION, True)
        text = verify(host, model, [62, 61, 60])
        assert host.held_count(SESSION).result(PATIENCE) <= len(text) - 1
        model.saved.clear()
        host.pin(SESSION, False)
        held = host.held_count(SESSION).result(PATIENCE)
        assert 0 < held <= len(text) - 1 and set(model.saved) <= {held}


def test_a_session_that_is_dropped_is_not_saved_before() -> None:
    with running() as (host, model):
        host.pin(SESSION, True)
        verify(host, model, [])
        model.saved.clear()
        host.forget(SESSION).result(PATIENCE)
        assert host.held_count(SESSION).result(PATIENCE) == 0 and model.saved == []
