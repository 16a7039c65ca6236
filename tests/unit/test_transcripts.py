"""Whole completions as transcripts: what is told, `----`, what is asked for next.

Every file in tests/transcripts is one generation. A block is some lines that
tell what happened, in order, and then what the generation wants done.
`REWRITE_TRANSCRIPTS=1 pytest tests/unit/test_transcripts.py` writes what it wants
now into the files; the difference is for a reader to judge.

    prompt 5 6 7 limit 10      begins: `draft N`, `rule R`, `form F`, `end ID`, `ahead on`,
                               `distant target`, `context N` (the target's) and
                               `rollback calls` may follow
    target opens | is lost | is busy | is full | holds N
    draft opens [context N] | is lost | is late | is busy | holds N
    drafted 8 9                the line continues, and the newest order is complete
    drafted 8 9, more          the line continues, and so does the order
    drafted from 4 base 3: 8   a frame of any kind, with `, more` or `, order N`
    verified accepted=2 next=9 the target's answer to the round in flight; `of 3` if it has
                               verified only three of its draft tokens
    stop at 6                  a stop sequence is complete with the text's first six tokens

A number in `[...]` after `target` or `draft` names the round or order that is
answered; without it, it is the newest one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from outrider.core.actions import Action, Commit, End, RollBack
from outrider.core.plan import Plan
from outrider.core.speculate import control
from outrider.core.target_costs import Pair
from outrider.distribution import certain
from outrider.messages import Form, Frame, Order, Round, Rows, Rule, SessionParameters, Span
from outrider.sampling import GREEDY
from outrider.speculation import Policy, Speculation
from tests.support.ticking import Ticking

FOLDER = Path(__file__).parent.parent / "transcripts"
VOCABULARY = 64
OPTIONS = {"limit", "draft", "rule", "form", "end", "ahead", "distant", "context", "rollback"}


class Play:
    """One generation that is told lines of a transcript."""

    def __init__(self) -> None:
        self.generation: Ticking | None = None
        self._round: Round | None = None
        self._rounds: dict[int, Round] = {}
        self._order = 0
        self._base = 0
        self._line: list[int] = []  # what `drafted` continues with, from its base on

    def tell(self, line: str) -> None:
        """Make happen what a line says."""
        verb, _, rest = line.partition(" ")
        if verb == "prompt":
            self.generation = _begin(rest)
        elif verb == "target":
            self._tell_target(*_answered(rest, self._round.number if self._round else 0))
        elif verb == "draft":
            self._tell_draft(*_answered(rest, self._order))
        elif verb == "drafted":
            self._tell_frame(rest)
        elif verb == "verified":
            self._tell_rows(rest)
        elif verb == "stop":
            self._known.stop(int(rest.removeprefix("at ")))
        else:
            raise ValueError(f"no such line: {line}")

    @property
    def _known(self) -> Ticking:
        assert self.generation is not None, "a transcript begins with its prompt"
        return self.generation

    def _tell_target(self, what: str, number: int) -> None:
        word, _, count = what.rpartition(" ")
        if what == "opens":
            self._known.target_opened()
        elif what == "is lost":
            self._known.target_lost()
        elif what == "is busy":
            self._known.target_busy(number)
        elif what == "is full":
            self._known.target_full(number)
        elif word == "holds":
            self._known.target_missing(number, int(count))
        else:
            raise ValueError(f"the target cannot: {what}")

    def _tell_draft(self, what: str, number: int) -> None:
        word, _, count = what.rpartition(" ")
        if what.startswith("opens"):
            self._known.draft_opened(int(count) if word else 1000)
        elif what == "is lost":
            self._known.draft_lost()
        elif what == "is late":
            self._known.pass_time()
        elif what == "is busy":
            self._known.draft_refused(number)
        elif word == "holds":
            self._known.draft_missing(number, int(count))
        else:
            raise ValueError(f"the draft cannot: {what}")

    def _tell_frame(self, rest: str) -> None:
        tokens, _, end = rest.partition(",")
        where, _, ids = tokens.rpartition(":")
        position, token_ids = self._base + len(self._line), _ids(ids)
        if where:
            _, at, _, base = where.split()
            position = int(at)
            self._base, self._line = int(base), self._line if int(base) == self._base else []
        order = {"": self._order, " more": 0}.get(end)
        frame = Frame(
            base=self._base,
            position=position,
            token_ids=token_ids,
            rows=[certain(i) for i in token_ids] if self._rule is Rule.REJECTION else [],
            completed=order if order is not None else int(end.split()[1]),
        )
        unseen = [-1] * (position - self._base)
        self._line = [*self._line, *unseen][: position - self._base] + token_ids
        self._known.draft_frame(frame)

    @property
    def _rule(self) -> Rule:
        return self._known.plan.opening.rule

    def _tell_rows(self, rest: str) -> None:
        said, number = _answered(rest, self._round.number if self._round else 0)
        found = re.fullmatch(r"accepted=(\d+) next=(\d+)(?: of (\d+))?", said)
        round_ = self._rounds.get(number)
        assert found and round_, f"cannot be verified: {rest}"
        accepted, following = int(found[1]), int(found[2])
        answered = int(found[3]) + 1 if found[3] else round_.row_count
        assert accepted < answered <= round_.row_count, "more was accepted than drafted"
        ids = [*round_.draft[:accepted], following]
        ids += [following] * (answered - len(ids))
        self._known.target_rows(number, _rows(ids, round_.form))

    def asked(self) -> list[str]:
        """Return what is to be done now."""
        return [self._read(action) for action in self._known.next_actions()] or ["nothing"]

    def _read(self, action: Action) -> str:
        if isinstance(action, Order):
            return self._read_order(action)
        if isinstance(action, Round):
            self._round = self._rounds[action.number] = action
            guesses = f" with {_text(action.draft)}" if action.draft else ""
            return f"verify[{action.number}] {_span(action.prefix)}{guesses}"
        if isinstance(action, RollBack):
            return f"roll back to {action.token_count}"
        if isinstance(action, Commit):
            origins = " ".join(origin.value for origin in action.origins)
            assert action.report is not None
            why = action.report.draft_end.name.lower().replace("_", " ")
            return f"text {_text(action.token_ids)} ({origins}; draft: {why})"
        assert isinstance(action, End)
        return f"end: {action.reason.value}"

    def _read_order(self, order: Order) -> str:
        self._order = order.number
        self._expect_line()
        return f"draft[{order.number}] {_span(order.committed)}, until {order.draft_until}"

    def _expect_line(self) -> None:
        """Let `drafted` continue where a draft would: with its line, or at the end of the text."""
        text = self._known.committed
        agrees = self._line[: len(text) - self._base] == text[self._base :]
        if not agrees or self._rule is Rule.REJECTION:
            self._base, self._line = len(text), []


def _begin(rest: str) -> Ticking:
    words = rest.split()
    count = words.index("limit")
    prompt = [int(word) for word in words[:count]]
    options = dict(zip(words[count::2], words[count + 1 :: 2], strict=True))
    unknown = options.keys() - OPTIONS
    assert not unknown, f"no such options: {unknown}"
    rule = Rule(options.get("rule", "match"))
    speculation = Speculation(
        n_max=int(options.get("draft", 4)),
        policy=Policy.FIXED,
        run_ahead=options.get("ahead") == "on",
    )
    pair = Pair()
    if options.get("distant") == "target":
        pair.costs.overhead.note(0.1)
    usual = "distributions" if rule is Rule.REJECTION else "sampled"
    return Ticking(
        Plan(
            is_watched=True,
            opening=SessionParameters(
                session_id=bytes(16),
                attempt=1,
                rule=rule,
                sampling=GREEDY,
                seed=7,
                choice=0,
                prompt_count=len(prompt),
                token_limit=int(options["limit"]),
                vocabulary=VOCABULARY,
                end_token_ids=frozenset({int(options["end"])} if "end" in options else ()),
            ),
            prompt=prompt,
            control=control(speculation, rule, pair, patience=1.0),
            form=Form(options.get("form", usual)),
            rollback_calls=options.get("rollback") == "calls",
            target_context=int(options.get("context", 1000)),
        )
    )


def _answered(rest: str, newest: int) -> tuple[str, int]:
    """Split the number in brackets off."""
    found = re.fullmatch(r"(?:\[(\d+)\] )?(.*)", rest)
    assert found
    return found[2], int(found[1]) if found[1] else newest


def _rows(ids: list[int], form: Form) -> Rows:
    if form is Form.SAMPLED:
        return Rows(sampled=ids)
    if form is Form.DISTRIBUTIONS:
        return Rows(distributions=[certain(i) for i in ids])
    return Rows(logits=[np.eye(VOCABULARY, dtype=np.float32)[i].tobytes() for i in ids])


def _ids(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def _text(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def _span(span: Span) -> str:
    return f"from {span.position}: {_text(span.token_ids)}".rstrip()


def play(transcript: str) -> str:
    """Return the transcript with what is asked for now in place of what it says."""
    performance, blocks = Play(), []
    for block in transcript.strip("\n").split("\n\n"):
        told = block.partition("\n----")[0].splitlines()
        lines = [line for line in told if not line.startswith("#")]
        for line in lines:
            performance.tell(line)
        asked = ["----", *performance.asked()] if lines else []
        blocks.append("\n".join([*told, *asked]))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_a_generation_asks_for_what_its_transcript_says(path: Path) -> None:
    transcript = path.read_text()
    played = play(transcript)
    if os.environ.get("REWRITE_TRANSCRIPTS") == "1":
        path.write_text(played)
        return
    assert played == transcript


def test_there_are_transcripts() -> None:
    assert len(list(FOLDER.glob("*.txt"))) > 10
