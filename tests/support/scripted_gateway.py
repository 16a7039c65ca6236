"""A gateway that serves the page and tells scripted generations."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from gateway.page import INDEX, answer
from tests.support.browser import until
from tests.support.processes import free_port

Json = dict[str, Any]


@dataclass(frozen=True)
class Round:
    """What one round drafts, and what the target makes of it."""

    draft: Sequence[str]
    accepted: int
    target: str
    draft_end: str = "length"
    seconds: float = 0.05
    sources: Sequence[str] = ()  # of each draft token; none: all are the model's
    lines: Sequence[int] = ()  # of the draft that each is of; none: all are of its first

    @property
    def origin(self) -> str:
        """Where the target's own token comes from."""
        if not self.draft:
            return "plain"
        return "bonus" if self.accepted == len(self.draft) else "corrected"

    @property
    def tokens(self) -> list[tuple[str, Json]]:
        """Text, origin and source of what it commits."""
        kept = list(zip(self.draft, self.who, strict=True))[: self.accepted]
        drafted: list[tuple[str, Json]] = [
            (text, {"origin": "drafted", "source": source} | self._line(i))
            for i, (text, source) in enumerate(kept)
        ]
        return [*drafted, (self.target, {"origin": self.origin})]

    def _line(self, i: int) -> Json:
        return {"line": self.lines[i]} if self.lines and self.lines[i] else {}

    @property
    def who(self) -> list[str]:
        """Who proposed each draft token."""
        return list(self.sources) or ["model"] * len(self.draft)


@dataclass
class Script:
    """A generation to be told."""

    rounds: Sequence[Round]
    pace: float = 0.0  # seconds between two rounds
    stop_type: str = "limit"
    hidden: str = ""  # what of the last tokens is a stop sequence, so no content
    error: str = ""  # ends the stream in place of the last message
    cut: bool = False  # the stream just ends
    reports: bool = True  # where tokens come from; without, ids alone, as of llama-server
    names_sources: bool = True  # an older gateway does not
    piece: int = 1 << 20  # bytes written to the network at a time
    thought_count: int = 0  # of a chat, so many of the first rounds are thoughts
    calls: Sequence[tuple[str, str]] = ()  # of a chat, names and arguments, at the end
    times: int = 1  # as many tokens of each source as were told, for large numbers

    def messages(self) -> Iterator[Json]:
        """Yield what the stream carries."""
        position = 0
        for number, round_ in enumerate(self.rounds, 1):
            message = self._message(number, round_, position)
            if not self.reports:
                message = {**message, "tokens": [t["id"] for t in message["tokens"]], "round": None}
            elif not self.names_sources:
                message["round"].pop("sources")
                for token in message["tokens"]:
                    token.pop("source", None)
            yield message
            position += len(round_.tokens)
        if self.error:
            yield {"error": {"code": 503, "message": self.error, "type": "unavailable_error"}}
        elif not self.cut:
            yield {"content": "", "tokens": [], **self._end()}

    def chunks(self) -> Iterator[Json]:
        """Yield what the stream of a chat carries."""
        for number, message in enumerate(self.messages()):
            if "error" in message:
                yield message
            elif message["stop"]:
                yield from self._last_chunks(message)
            else:
                member = "reasoning_content" if number < self.thought_count else "content"
                report = {name: message[name] for name in ("tokens", "round")}
                yield _chunk({member: message["content"]}) | report

    def _last_chunks(self, message: Json) -> Iterator[Json]:
        for i, (name, arguments) in enumerate(self.calls):
            named = {"index": i, "id": f"call_{i}", "function": {"name": name, "arguments": ""}}
            yield _chunk({"tool_calls": [named]})
            for start in range(0, len(arguments), 5):
                part = {"index": i, "function": {"arguments": arguments[start : start + 5]}}
                yield _chunk({"tool_calls": [part]})
        reason = "length" if self.stop_type == "limit" else "tool_calls" if self.calls else "stop"
        yield _chunk({}, reason) | {
            "stop_type": self.stop_type,
            "seed": message["generation_settings"]["seed"],
            "statistics": message["statistics"],
        }

    def _message(self, number: int, round_: Round, position: int) -> Json:
        tokens = [
            {
                "id": 300 + sum(text.encode()),
                "text": text,
                **where_from,
                "logprob": math.log(0.55 + 0.4 * math.sin(position + i) ** 2),
                "position": position + i,
                "round": number,
            }
            for i, (text, where_from) in enumerate(round_.tokens)
        ]
        content = "".join(text for text, _ in round_.tokens)
        if number == len(self.rounds):
            content = content.removesuffix(self.hidden)
        rejected = round_.draft[round_.accepted] if round_.origin == "corrected" else None
        report = {
            "round": number,
            "draft": list(round_.draft),
            "sources": round_.who,
            "accepted": round_.accepted,
            "rejected": rejected,
            "target": round_.target,
            "draft_end": round_.draft_end,
            "seconds": round_.seconds,
        }
        return {"content": content, "stop": False, "tokens": tokens, "round": report}

    def _end(self) -> Json:
        return {
            "stop": True,
            "stop_type": self.stop_type,
            "generation_settings": {"seed": 42},
            "timings": {},
            "statistics": self._statistics(),
        }

    def _statistics(self) -> Json:
        drafted = sum(len(round_.draft) for round_ in self.rounds)
        accepted = sum(round_.accepted for round_ in self.rounds)
        generated = accepted + len(self.rounds)
        generating = 0.031 * generated
        return {
            "prompt_token_count": 7,
            "generated_token_count": generated,
            "drafted_token_count": drafted,
            "accepted_token_count": accepted,
            "round_count": len(self.rounds),
            "first_token_seconds": 0.081,
            "generation_seconds": generating,
            "draft_wait_seconds": 0.16 * generating,
            "draft_network_seconds": 0.04 * generating,
            "verify_wait_seconds": 0.081 + 0.80 * generating,
            "verify_network_seconds": 0.11 * generating,
            "controller": {"target_alone_token_rate": 22.2},
            "wire_byte_count": 4821,
            "draft_time": {"step_count": 3 * sum(bool(each.draft) for each in self.rounds)},
            **({"sources": self._sources} if self.names_sources else {}),
        }

    @property
    def _sources(self) -> list[Json]:
        return [self._source(name) for name in dict.fromkeys(self._who())]

    def _who(self) -> Iterator[str]:
        for round_ in self.rounds:
            yield from round_.who

    def _source(self, name: str) -> Json:
        accepted = sum(each.who[: each.accepted].count(name) for each in self.rounds)
        accepted *= self.times
        drafted = self.times * [*self._who()].count(name)
        told: Json = {
            "name": name,
            "drafted_token_count": drafted,
            "accepted_token_count": accepted,
            "seconds": drafted * (0.0052 if name == "model" else 0.000031),
        }
        if name != "model":  # as under rejection
            told |= {"decided_token_count": 2 * drafted, "agreed_token_count": drafted + accepted}
        return told


def _chunk(delta: Json, reason: str | None = None) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


STATUS: Json = {
    "service_version": "0.1.0",
    "active_generation_count": 1,
    "speculating": True,
    "controller": {"token_rate": 31.5, "target_alone_token_rate": 22.2},
    "peers": [
        {
            "role": "target",
            "address": "10.0.0.2:50051",
            "state": "PEER_STATE_READY",
            "model": {"model_name": "stdlib-target-q8_0"},
            "round_trip_duration": "0.000910s",
        },
        {
            "role": "draft",
            "address": "10.0.0.3:50052",
            "state": "PEER_STATE_READY",
            "model": {"model_name": "stdlib-draft-q8_0"},
            "round_trip_duration": "0.006400s",
        },
    ],
}


@dataclass
class Gateway:
    """What it is to tell, and what it was told."""

    address: str
    script: Script = field(default_factory=lambda: Script([]))
    status: Json = field(default_factory=lambda: dict(STATUS))
    key: str = ""  # wanted, if there is one
    refuses: str = ""  # every completion, with this message
    requests: list[Json] = field(default_factory=list)
    chats: list[list[Json]] = field(default_factory=list)
    """The messages of every chat that was asked for."""
    stands_in: bool = False  # ChatML, for a model without a chat template
    polls: int = 0
    left: threading.Event = field(default_factory=threading.Event)
    """Set when a client went away in the middle of a stream."""

    @property
    def url(self) -> str:
        """The page."""
        return f"http://{self.address}/"

    def refusal(self, request: Request) -> Response | None:
        """Return the answer to a request without the key."""
        if not self.key or request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        error = {"code": 401, "message": "Wrong API key.", "type": "authentication_error"}
        return JSONResponse({"error": error}, 401)

    async def answer(self, request: Request, events: Iterator[Json]) -> Response:
        """Answer with a script's events, unless the request is refused."""
        if refusal := self.refusal(request):
            return refusal
        if self.refuses:
            error = {"code": 400, "message": self.refuses, "type": "invalid_request_error"}
            return JSONResponse({"error": error}, 400)
        self.requests.append(await request.json())
        return StreamingResponse(self.tell(events), media_type="text/event-stream")

    async def tell(self, events: Iterator[Json]) -> AsyncIterator[bytes]:
        """Yield the server-sent events of the script."""
        complete, size = False, self.script.piece
        try:
            for message in events:
                event = f"data: {json.dumps(message, ensure_ascii=False)}\n\n".encode()
                for start in range(0, len(event), size):
                    yield event[start : start + size]
                await asyncio.sleep(self.script.pace)
            complete = True
        finally:
            if not complete:
                self.left.set()


def _application(gateway: Gateway) -> FastAPI:
    app = FastAPI()

    @app.get("/")
    async def root(request: Request) -> Response:
        return answer(INDEX, request.headers)

    @app.get("/page/{name:path}")
    async def part(request: Request, name: str) -> Response:
        return answer(name, request.headers)

    @app.get("/props")
    async def properties(request: Request) -> Response:
        shape = {"chat_template_stands_in": gateway.stands_in}
        return gateway.refusal(request) or JSONResponse(shape)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        answer = await gateway.answer(request, gateway.script.chunks())
        if isinstance(answer, StreamingResponse):
            gateway.chats.append(gateway.requests[-1]["messages"])
        return answer

    @app.get("/status")
    async def status(request: Request) -> Response:
        gateway.polls += 1
        return gateway.refusal(request) or JSONResponse(gateway.status)

    @app.post("/completion")
    async def completion(request: Request) -> Response:
        return await gateway.answer(request, gateway.script.messages())

    return app


@contextmanager
def serving() -> Iterator[Gateway]:
    """Serve a gateway on a loopback port, from a thread."""
    port = free_port()
    gateway = Gateway(f"127.0.0.1:{port}")
    config = uvicorn.Config(
        _application(gateway),
        host="127.0.0.1",
        port=port,
        log_level="error",
        ws="none",
        lifespan="off",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield gateway
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
