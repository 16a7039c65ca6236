"""A small stand-in for llama-server over a toy model: what a draft asks of it, answered honestly.

Written against llama.cpp 0c1e57098, as llama-cpp-python 0.3.36 ships it;
`tests/integrations/test_llama_server_draft.py` asks a real one the same where there is one.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from outrider.engine.model import Chunk
from outrider.rpc.channel import open_channel
from outrider.rpc.server import Server, ServerConfig
from outrider.v1.draft_service_pb2_grpc import DraftServiceStub, add_DraftServiceServicer_to_server
from outrider_llama_server.http import HttpServer
from outrider_llama_server.main import serve_while_up
from outrider_llama_server.servicer import LlamaServerServicer
from outrider_llama_server.upstream import Upstream
from tests.support.toy import EOS, ToyModel

Answer = Callable[[str, Any], Any]
"""Given the path and the body of a request, returns the JSON to answer, bytes as they are, or None
for the honest answer."""


class LlamaServerStandIn:
    """One server. `kill` and `start` again keep its address."""

    def __init__(self, model: ToyModel, key: str = "") -> None:
        self.model = model
        self.key = key
        self.requests: list[tuple[str, Any]] = []
        self.lie: Answer = lambda path, body: None
        self.pace = 0.0  # seconds of every token
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self._one_at_a_time = threading.Lock()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen."""
        handler = type("Handler", (_Handler,), {"stand_in": self})
        self._server = _Server(("127.0.0.1", self._port), handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def kill(self) -> None:
        """Stop listening and cut what is open."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            server.cut()

    @property
    def completions(self) -> list[Any]:
        """The bodies of the completions that were asked for."""
        return [body for path, body in self.requests if path == "/completion"]

    def answer(self, path: str, body: Any) -> Any:
        """Return what a request is answered; None for a path that there is not."""
        self.requests.append((path, body))
        if (lie := self.lie(path, body)) is not None:
            return lie
        known: Mapping[str, Callable[[Any], Any]] = {
            "/health": lambda _: {"status": "ok"},
            "/props": lambda _: self._props(),
            "/v1/models": lambda _: self._models(),
            "/detokenize": self._detokenize,
            "/completion": self._complete,
        }
        return known[path](body) if path in known else None

    def _props(self) -> Any:
        settings = {"n_ctx": self.model.context, "params": {}}
        return {
            "default_generation_settings": settings,
            "total_slots": 2,
            "model_path": f"toy-{self.model.seed}.gguf",
        }

    def _models(self) -> Any:
        meta = {"vocab_type": 2, "n_vocab": self.model.vocabulary_size, "n_params": 0, "size": 0}
        return {"object": "list", "data": [{"id": f"toy-{self.model.seed}", "meta": meta}]}

    def _detokenize(self, body: Any) -> Any:
        texts, names = self.model.token_texts(), self.model.token_names()
        said = b"".join(texts[i] or names[i] for i in body["tokens"])
        return {"content": said.decode("utf-8", "replace")}

    def _complete(self, body: Any) -> Any:
        prompt = body["prompt"]
        if isinstance(prompt, str):
            prompt = self.model.tokenize(prompt.encode(), add_special=True, parse_special=True)
        assert all(0 <= i < self.model.vocabulary_size for i in prompt)
        biases = {i: -np.inf if bias is False else bias for i, bias in body.get("logit_bias", [])}
        tokens, rows, text = [], [], list(prompt)
        with self._one_at_a_time:
            while len(tokens) < body["n_predict"] and len(text) < self.model.context:
                row = self._row(text)
                if body.get("ignore_eos"):
                    row[EOS] = -np.inf
                biased = row.copy()
                for token_id, bias in biases.items():
                    biased[token_id] += bias
                token_id = int(biased.argmax())
                tokens.append(token_id)
                text.append(token_id)
                rows.append(_said(token_id, row, body.get("n_probs", 0)))
                time.sleep(self.pace)
                if token_id == EOS:
                    break
        answer = {"tokens": tokens, "timings": {"predicted_per_token_ms": 1.0}}
        if body.get("n_probs"):
            answer["completion_probabilities"] = rows
        return answer

    def _row(self, text: Sequence[int]) -> Any:
        """Return the logits behind a text, of which nothing is kept."""
        self.model.truncate(0, 0)
        size = self.model.batch_rows
        for start in range(0, len(text) - 1, size):
            end = min(start + size, len(text) - 1)
            self.model.decode([Chunk(0, start, list(text[start:end]), 0)])
        [[row]] = self.model.decode([Chunk(0, len(text) - 1, [text[-1]], 1)])
        return row.copy()


def _said(token_id: int, row: Any, count: int) -> Any:
    values = row - np.log(np.exp(row - row.max()).sum()) - row.max()
    best = np.argsort(-values, kind="stable")[:count].tolist()
    listed = [{"id": i, "token": "", "bytes": [], "logprob": _finite(values[i])} for i in best]
    return {"id": token_id, "logprob": _finite(values[token_id]), "top_logprobs": listed}


def _finite(value: Any) -> float:
    """Return a logarithm as llama-server says that of 0: the lowest number."""
    return float(value) if np.isfinite(value) else float(np.finfo(np.float32).min)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *options: Any) -> None:
        self._open: set[Any] = set()
        super().__init__(*options)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that is gone is nothing to say a word about."""

    def cut(self) -> None:
        """Close every connection, whatever is on its way."""
        for request in list(self._open):
            self.shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    stand_in: LlamaServerStandIn
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        key = self.stand_in.key
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self._write(401, b"{}")
            return
        answer = self.stand_in.answer(self.path, body)
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self._write(404 if answer is None else 200, data)

    def _write(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing is logged."""


class LlamaServerDraft:
    """A draft service over a llama-server, in this process; it keeps its port."""

    def __init__(self, url: str, key: Callable[[], str] = lambda: "") -> None:
        self._url, self._key = url, key
        self.address = "127.0.0.1:0"

    async def start(self) -> None:
        """Listen, and look for the llama-server."""
        self.upstream = Upstream(HttpServer(self._url, self._key))
        self.servicer = LlamaServerServicer(self.upstream, "")
        self._server = Server(ServerConfig(listen=self.address), "outrider.v1.DraftService")
        add_DraftServiceServicer_to_server(self.servicer, self._server.grpc)
        await self._server.start()
        self.address = self._server.address
        self._watching = asyncio.create_task(serve_while_up(self._server, self.upstream))
        self.channel = open_channel(self.address)

    @property
    def stub(self) -> Any:
        """A client of the service."""
        return DraftServiceStub(self.channel)

    async def close(self) -> None:
        """Stop without a word."""
        self._watching.cancel()
        await asyncio.wait([self._watching])
        await self.channel.close()
        await self._server.grpc.stop(None)
