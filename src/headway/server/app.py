"""The routes. Start with ``Api.chat_completions``: read, convert, submit, answer."""

import hashlib
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from secrets import token_hex
from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.responses import Response

from headway import __version__
from headway.config import ServerConfig
from headway.engine.sampling_defaults import effective_sampling
from headway.errors import InvalidRequest
from headway.observe.metrics import Metrics
from headway.server import errors
from headway.server.body import read_model
from headway.server.chat_reply import ChatReply
from headway.server.engine_contract import ServedEngine
from headway.server.gate import Gate, GateMiddleware
from headway.server.generation import Generation
from headway.server.host_guard import HostGuard
from headway.server.intake import Intake, Job
from headway.server.openapi import request_body
from headway.server.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from headway.server.readiness import ProgressProbe
from headway.server.replies import CompletionReply, Reply, ReplyHead, dumps, usage_body
from headway.server.streaming import EventStream, events

Endpoint = Callable[..., Awaitable[Response]]
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Api:
    """The endpoints over one engine. Owns nothing that outlives a request but the metrics and the readiness probe."""

    def __init__(self, engine: ServedEngine, config: ServerConfig) -> None:
        self._engine = engine
        self._config = config
        self._intake = Intake.over(engine, config.limits, config.sampling)
        self._probe = ProgressProbe()
        self._started = int(time.time())
        self._fingerprint = system_fingerprint(engine)
        self.metrics = Metrics(engine.card.name, engine.stats)
        self.gate = Gate(config.drain_s)

    async def chat_completions(self, request: Request) -> Response:
        arrival = time.monotonic()
        body = await read_model(request, ChatRequest, self._config.limits)
        job = (await self._intake.chat_job(body, _label(request))).of(*_caller(request))
        reply = ChatReply(self._head("chatcmpl"), len(job.sequences), job.include_usage)
        return await self._answer(request, job, reply, arrival)

    async def completions(self, request: Request) -> Response:
        arrival = time.monotonic()
        body = await read_model(request, CompletionRequest, self._config.limits)
        job = (await self._intake.completion_job(body, _label(request))).of(*_caller(request))
        reply = CompletionReply(self._head("cmpl"), len(job.sequences), job.include_usage, job.n, job.echo)
        return await self._answer(request, job, reply, arrival)

    async def _answer(self, request: Request, job: Job, reply: Reply, arrival: float) -> Response:
        generation = await Generation.start(self._engine, job.sequences, self.metrics, arrival)
        request.scope["headway.visit"].generation = generation
        headers = {"x-request-id": job.sequences[0].label or token_hex(12)}
        async with generation.watching(request.receive):
            if not job.stream:
                async with aclosing(generation.deltas()) as deltas:
                    async for index, delta in deltas:
                        reply.add(index, delta)
                return _json(reply.body(usage_body(generation.usages, job.n)), headers)
            rest = events(generation, reply, job)
            first = await anext(rest)
        return EventStream(first, rest, generation, self._config.send_buffer_bytes, headers)

    async def models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [self._model_body()]})

    async def model(self, model_id: str) -> Response:
        self._intake.check_model(model_id)
        return _json(self._model_body())

    async def tokenize(self, request: Request) -> Response:
        body = await read_model(request, TokenizeRequest, self._config.limits)
        self._intake.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest("Send either prompt or messages.", param="prompt")
        if body.messages is not None:
            tokens = await self._intake.chat_prompt(
                body.messages, body.add_generation_prompt, body.continue_final_message
            )
        else:
            tokens = await self._intake.encode(body.prompt or "", body.add_special_tokens)
        return _json({"count": len(tokens), "max_model_len": self._engine.card.max_context, "tokens": tokens})

    async def detokenize(self, request: Request) -> Response:
        body = await read_model(request, DetokenizeRequest, self._config.limits)
        self._intake.check_model(body.model)
        return _json({"prompt": await self._intake.decode(body.tokens, body.skip_special_tokens)})

    async def health(self, request: Request) -> Response:
        return _json({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        stats = self._engine.stats()
        fault = "the server is shutting down" if self.gate.is_closed else self._probe.fault(stats, time.monotonic())
        numbers = {"running": stats.num_running, "waiting": stats.num_waiting, "steps": stats.num_steps}
        if fault is not None:
            raise errors.unavailable(f"Not ready: {fault}.", "not_ready", 5, numbers)
        return _json({"status": "ready", **numbers})

    async def metrics_page(self, request: Request) -> Response:
        return Response(self.metrics.render(), media_type=Metrics.content_type)

    def _head(self, prefix: str) -> ReplyHead:
        return ReplyHead(f"{prefix}-{token_hex(12)}", int(time.time()), self._engine.card.name, self._fingerprint)

    def _model_body(self) -> dict[str, Any]:
        card = self._engine.card
        return {
            "id": card.name,
            "object": "model",
            "created": self._started,
            "owned_by": "headway",
            "family": card.family,
            "revision": card.revision,
            "quantisation": card.quantisation,
            "digest": card.digest,
            "max_model_len": card.max_context,
            "num_parameters": card.num_parameters,
            "vocab_size": card.vocab_size,
            "sampling_defaults": effective_sampling({}, self._config.sampling, self._engine.generation_defaults),
        }


def create_app(engine: ServedEngine, config: ServerConfig) -> FastAPI:
    """The ASGI application over a running engine; ``app.state.gate`` is what a graceful stop closes."""
    api = Api(engine, config)
    app = FastAPI(title="Headway", version=__version__, docs_url=None, redoc_url=None)
    app.state.gate = api.gate
    _add_routes(app, api)
    errors.install(app, api.metrics.refused)
    app.add_middleware(GateMiddleware, gate=api.gate)
    app.add_middleware(HostGuard, configured_host=config.host)
    return app


def _add_routes(app: FastAPI, api: Api) -> None:
    def post(path: str, endpoint: Endpoint, model: type[BaseModel]) -> None:
        app.add_api_route(path, endpoint, methods=["POST"], response_model=None, openapi_extra=request_body(model))

    def get(path: str, endpoint: Endpoint) -> None:
        app.add_api_route(path, endpoint, methods=["GET"], response_model=None)

    post("/v1/chat/completions", api.chat_completions, ChatRequest)
    post("/v1/completions", api.completions, CompletionRequest)
    post("/tokenize", api.tokenize, TokenizeRequest)
    post("/detokenize", api.detokenize, DetokenizeRequest)
    get("/v1/models", api.models)
    get("/v1/models/{model_id:path}", api.model)
    get("/health", api.health)
    get("/ready", api.ready)
    get("/metrics", api.metrics_page)


def system_fingerprint(engine: ServedEngine) -> str:
    """Names the model's bytes, its quantisation and the engine's version: what decides the tokens on one machine."""
    identity = f"{engine.card.digest}/{engine.card.quantisation}/{__version__}"
    return "hw-" + hashlib.sha256(identity.encode()).hexdigest()[:12]


def _label(request: Request) -> str:
    """The client's own name for its request; empty when it gave none."""
    return _named(request, "X-Request-Id")


def _caller(request: Request) -> tuple[str, str]:
    """Tenant and class. Whoever reaches a server without keys, which is on loopback alone, is believed."""
    return _named(request, "X-Headway-Tenant"), _named(request, "X-Headway-Class")


def _named(request: Request, header: str) -> str:
    name = request.headers.get(header, "")
    if name and not _NAME.fullmatch(name):
        message = f"The {header} header may hold up to 128 letters, digits, dots, underscores and hyphens."
        raise InvalidRequest(message, param=header)
    return name


def _json(body: bytes | dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    content = body if isinstance(body, bytes) else dumps(body).encode()
    return Response(content, headers=headers, media_type="application/json")
