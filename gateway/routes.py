"""The routes of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from typing import Any, get_type_hints

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

import outrider
from gateway import ollama, page
from gateway.access_log import RequestScopes
from gateway.bodies import JsonRoute
from gateway.config import HttpConfig
from gateway.event_streams import ClientGone, until_gone
from gateway.gateway import ANTHROPIC, LLAMA, OLLAMA, OPENAI, Dialect, Gateway
from gateway.http_errors import HttpFailure
from gateway.metrics import CONTENT_TYPE, Metrics
from gateway.middleware import (
    AnyContentType,
    BodyBounds,
    BodyLimit,
    HeadAsGet,
    InternalErrors,
    KnownHost,
)
from gateway.openai import answers
from gateway.repeats import Repeats, answer_log
from gateway.rights import Rights
from orchestrator.service import Orchestrator
from outrider.access import Access
from outrider.errors import Draining, OutriderError
from outrider.v1 import orchestrator_service_pb2 as messages

_MOST_PATH = 80  # characters of a path that an error repeats
_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"description": "An error, with its reason."}}


def describe() -> dict[str, Any]:
    """Return the OpenAPI description of the gateway."""
    nobody: Any = _Nobody()
    routes = create_app(nobody, HttpConfig(listen="127.0.0.1:0"))
    description: dict[str, Any] = routes.openapi()
    return description


class _Nobody:
    """An orchestrator for routes that nobody asks."""

    def observe(self, observer: object) -> None:
        """There will be nothing to see."""

    def status(self) -> messages.GetStatusResponse:
        """Return that there is nothing."""
        return messages.GetStatusResponse()


def create_app(
    orchestrator: Orchestrator,
    config: HttpConfig,
    access: Access | None = None,
) -> FastAPI:
    """Return the gateway over an orchestrator, as an ASGI application.

    Without an `access` anybody may call.
    """
    access = access or Access()
    app = FastAPI(
        title="Outrider",
        version=outrider.__version__,
        description="Lossless speculative decoding across machines.",
        docs_url=None,
        redoc_url=None,
    )
    app.router.route_class = JsonRoute
    metrics = Metrics(orchestrator.status, config.metrics_names)
    gateway = Gateway(orchestrator, config, metrics, outrider.__version__)
    _add_openai(app, gateway)
    _add_posts(app, gateway, "Anthropic")
    _add_ollama(app, gateway)
    _add_llama(app, gateway, config)
    _add_ours(app, gateway)
    _add_errors(app)
    app.add_middleware(InternalErrors, answer=lambda path, error: _dialect(path).error(error))
    app.state.answers = answer_log(config.state)
    app.add_middleware(Repeats, refusal=_refuse, log=app.state.answers)
    app.add_middleware(AnyContentType)
    app.add_middleware(HeadAsGet)
    app.state.bounds = BodyBounds(config.body_bytes, config.body_seconds)
    app.add_middleware(BodyLimit, bounds=app.state.bounds, refusal=_refuse)
    if access.is_guarded:
        paths = frozenset(path for route in app.routes if (path := getattr(route, "path", "")))
        app.add_middleware(Rights, access=access, paths=paths, refusal=_refuse)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
        )
    if config.hosts is not None:
        app.add_middleware(KnownHost, hosts=config.hosts, refusal=_refuse)
    known = [getattr(route, "path", "") for route in app.routes]
    app.add_middleware(RequestScopes, paths=frozenset(path for path in known if "{" not in path))
    return app


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Return the answer; stop the work at once when the client hangs up or the server stops."""
    try:
        return await until_gone(request.receive, work)
    except ClientGone:
        return Response(status_code=499)
    except asyncio.CancelledError:
        return _dialect(request.url.path).error(Draining("the server is stopping"))


_POSTS: tuple[tuple[str, str, tuple[str, ...], Callable[..., Any]], ...] = (
    ("OpenAI", "completions", ("/v1/completions",), Gateway.complete),
    ("OpenAI", "chat", ("/v1/chat/completions", "/chat/completions"), Gateway.chat),
    (
        "OpenAI",
        "count_chat",
        ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"),
        Gateway.count_chat,
    ),
    ("OpenAI", "embeddings", ("/v1/embeddings",), Gateway.embed),
    ("OpenAI", "respond", ("/v1/responses", "/responses"), Gateway.respond),
    ("Anthropic", "message", ("/v1/messages",), Gateway.message),
    ("Anthropic", "count_message", ("/v1/messages/count_tokens",), Gateway.count_message),
    ("Ollama", "ollama_chat", ("/api/chat",), Gateway.chat_ollama),
    ("Ollama", "ollama_generate", ("/api/generate",), Gateway.generate_ollama),
    ("Ollama", "ollama_embed", ("/api/embed",), Gateway.embed_ollama),
    ("Ollama", "ollama_embed_one", ("/api/embeddings",), Gateway.embed_one_ollama),
    ("Ollama", "ollama_show", ("/api/show",), Gateway.show_ollama),
    ("llama-server", "completion", ("/completion", "/completions"), Gateway.complete_natively),
    ("llama-server", "infill", ("/infill",), Gateway.fill_in),
    ("llama-server", "tokenize", ("/tokenize",), Gateway.tokenize),
    ("llama-server", "detokenize", ("/detokenize",), Gateway.detokenize),
    ("llama-server", "apply_template", ("/apply-template",), Gateway.apply_template),
    ("llama-server", "embedding", ("/embedding", "/embeddings"), Gateway.embed_natively),
)
"""Routes that take a body: the API, the operation, its paths, of which the first is documented, and
what answers; its `body` is the type of the body and its docstring the description."""


def _add_posts(app: FastAPI, gateway: Gateway, tag: str) -> None:
    for _, operation, (path, *others), method in (each for each in _POSTS if each[0] == tag):
        route = _post(operation, method, gateway)
        for other in others:
            app.post(other, include_in_schema=False)(route)
        app.post(path, tags=[tag], responses=_ERRORS)(route)


def _post(operation: str, method: Callable[..., Any], gateway: Gateway) -> Callable[..., Any]:
    """Return a route that answers a body with a method of the gateway, unless the client goes."""

    async def route(body: Any, request: Request) -> Response:
        return await _unless_gone(request, method(gateway, body))

    route.__name__, route.__doc__ = operation, method.__doc__
    route.__annotations__["body"] = get_type_hints(method)["body"]
    return route


def _add_openai(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/v1/models", tags=["OpenAI"], responses=_ERRORS)
    @app.get("/models", include_in_schema=False)
    async def models() -> Response:
        """List the target, once it is known."""
        return JSONResponse(answers.model_list(gateway.models()))

    @app.get("/v1/models/{model:path}", tags=["OpenAI"], responses=_ERRORS)
    async def model(model: str) -> Response:
        """Describe the target."""
        for card in gateway.models():
            if card["id"] == model:
                return JSONResponse(card)
        raise HTTPException(404, f"there is no model {model!r}")

    _add_posts(app, gateway, "OpenAI")


def _add_ollama(app: FastAPI, gateway: Gateway) -> None:
    _add_posts(app, gateway, "Ollama")

    @app.get("/api/tags", tags=["Ollama"], responses=_ERRORS)
    async def tags() -> Response:
        """List the target, once it is known."""
        return JSONResponse(gateway.models_ollama(ollama.card))

    @app.get("/api/ps", tags=["Ollama"], responses=_ERRORS)
    async def loaded_models() -> Response:
        """List the target, once it is known, as loaded."""
        return JSONResponse(gateway.models_ollama(ollama.running))

    @app.get("/api/version", tags=["Ollama"], responses=_ERRORS)
    async def ollama_version() -> Response:
        """Return the version of Ollama whose API this is."""
        return JSONResponse({"version": ollama.VERSION})


def _add_llama(app: FastAPI, gateway: Gateway, config: HttpConfig) -> None:
    _add_posts(app, gateway, "llama-server")

    @app.get("/props", tags=["llama-server"], responses=_ERRORS)
    async def properties() -> Response:
        """Describe the target and the defaults."""
        return JSONResponse(gateway.properties())

    @app.get("/slots", tags=["llama-server"], responses=_ERRORS)
    async def slots() -> Response:
        """Return what is in flight, where that is allowed."""
        if not config.slots:
            raise HTTPException(501, "/slots is off; start the orchestrator with --http-slots")
        return JSONResponse(gateway.slots())

    @app.get("/health", tags=["llama-server"], responses={503: {"description": "Not ready."}})
    @app.get("/v1/health", include_in_schema=False)
    async def health() -> Response:
        """Say whether new work is taken, and there is a target for it."""
        obstacle = gateway.obstacle()
        return LLAMA.refusal(obstacle) if obstacle else JSONResponse({"status": "ok"})

    @app.get("/metrics", tags=["llama-server"], responses=_ERRORS)
    async def metrics() -> Response:
        """Return the metrics in Prometheus' text format."""
        return Response(gateway.metrics.exposition(), media_type=CONTENT_TYPE)


def _add_ours(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/", tags=["Outrider"])
    async def index(request: Request) -> Response:
        """Return the page that shows generations live."""
        return page.answer(page.INDEX, request.headers)

    @app.get("/page/{name:path}", include_in_schema=False)
    async def part(request: Request, name: str) -> Response:
        """Return a part of the page."""
        if name not in page.PARTS:
            raise HTTPException(404, f"the page has no part {name}")
        return page.answer(name, request.headers)

    @app.get("/livez", tags=["Outrider"])
    async def livez() -> Response:
        """Say that the process is alive, ready or not."""
        return JSONResponse({"status": "ok"})

    @app.get("/status", tags=["Outrider"], responses=_ERRORS)
    async def status() -> Response:
        """Return the state of the peers, as GetStatusResponse."""
        return JSONResponse(gateway.status())


# --- errors ---


def _dialect(path: str) -> Dialect:
    if path.startswith("/v1/messages"):
        return ANTHROPIC
    if path.startswith("/api/"):
        return OLLAMA
    others = ("/chat/completions", "/chat/completions/input_tokens", "/models", "/responses")
    return OPENAI if path.startswith("/v1/") or path in others else LLAMA


def _refuse(path: str, failure: HttpFailure) -> Response:
    return _dialect(path).refusal(failure)


def _add_errors(app: FastAPI) -> None:
    def add(kind: type[Exception], handle: Callable[[Request, Any], Awaitable[Response]]) -> None:
        app.add_exception_handler(kind, handle)

    async def outrider_error(request: Request, error: OutriderError) -> Response:
        return _dialect(request.url.path).error(error)

    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return _refuse(request.url.path, _failure_of(error))

    async def http_error(request: Request, error: HTTPException) -> Response:
        said = str(error.detail)
        if said == HTTPStatus.NOT_FOUND.phrase:  # Starlette's own: no route
            asked = f"{request.method} {request.url.path[:_MOST_PATH]}"
            said = f"there is no {asked}; /openapi.json has what there is"
        return _refuse(request.url.path, HttpFailure(error.status_code, said))

    add(OutriderError, outrider_error)
    add(RequestValidationError, invalid)
    add(HTTPException, http_error)


_WHOLE_BODY = {
    "missing": "the body is empty; it must be a JSON object",
    "model_attributes_type": "the body must be a JSON object",
}


def _of_whole_body(error: dict[str, Any]) -> str:
    """Return what is wrong with a body of which no field is at fault."""
    reason = error.get("ctx", {}).get("error")
    if isinstance(reason, ValueError):  # of Body's own checks
        return f"the body {reason}"
    if reason is not None:
        return f"the body is not JSON: {reason} at character {error['loc'][-1]}"
    return _WHOLE_BODY.get(error["type"], str(error["msg"]))


def _failure_of(error: RequestValidationError) -> HttpFailure:
    """Return what is wrong with a body; never its values, which are text of users."""
    first = error.errors()[0]
    place = [part for part in first["loc"] if part != "body"]
    # Of what is no JSON the place is a number, the offset of a character.
    field = place[0] if place and isinstance(place[0], str) else None
    message = _of_whole_body(first) if field is None else f"{field}: {first['msg']}"
    return HttpFailure(400, message, field, "INVALID_REQUEST")
