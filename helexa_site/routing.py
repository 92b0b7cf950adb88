"""Routes paths: the API to our consumers, everything else to Django."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from channels.routing import ProtocolTypeRouter, URLRouter
from django.urls import URLPattern, re_path

from inference.batches.files import FileStore
from inference.gateway.batches import endpoints as batches
from inference.gateway.batches.store import BatchStore
from inference.gateway.batches.worker import BatchWorker
from inference.gateway.consumers import generate, ollama, tokenize
from inference.gateway.consumers.api_consumer import OpenApiConsumer, UnknownUrlConsumer
from inference.gateway.consumers.health import HealthConsumer, PingConsumer
from inference.gateway.consumers.models import ModelConsumer, ModelListConsumer
from inference.gateway.gateway import Gateway, LifespanConsumer
from inference.gateway.metrics.endpoint import MetricsEndpoint
from inference.gateway.responses import consumer as responses
from inference.gateway.responses.background import BackgroundRuns
from inference.gateway.responses.store import ResponseStore
from inference.gateway.responses.websocket import ResponseSocket
from inference.gateway.server.origins import with_cors
from inference.gateway.server.paths import OLLAMA_PATHS, api_path, api_path_of, deployment_of
from inference.gateway.server.unhandled import UnhandledRequests
from inference.gateway.upstreams.passed import PassThroughConsumer
from inference.wire.anthropic import errors as anthropic_errors
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.dialect import ErrorDialect
from inference.wire.ollama import chat as ollama_chat
from inference.wire.ollama import errors as ollama_errors
from inference.wire.openai import completions as openai_completions
from inference.wire.openai import errors as openai_errors
from inference.wire.openai.chat import request as openai_chat
from inference.wire.openai.passed.request import ENDPOINTS
from metering.playground.login import PREFIX as PLAYGROUND_PATH
from metering.playground.login import path_by_login, with_login

BENCH_PATH = "/api/bench/"
"""Read by pages of other origins, as the original's was."""
Route = tuple[str, Any, dict[str, Any]]
"""The pattern of a path, its consumer, and the consumer's options beside ``gateway``."""
RESPONSES_PATH = re.compile(r"(/v1)?/responses/?")


def errors_of(path: bytes) -> ErrorDialect:
    """The dialect for errors of this path before there is a consumer."""
    known = api_path_of(path) or ""
    if known in OLLAMA_PATHS:
        return ollama_errors
    return anthropic_errors if known.startswith("/v1/messages") else openai_errors


def build_application(
    gateway: Gateway,
    *,
    django_app: Any,
    metrics_endpoint: MetricsEndpoint | None = None,
    resumes_batches: bool = False,
) -> ProtocolTypeRouter:
    """An ASGI application that serves ``gateway`` under any ASGI server. ``metrics_endpoint``
    starts and stops with a server that supports ASGI's lifespan. ``resumes_batches``: of previous
    instances; else they are searched once there is a new batch."""
    store = ResponseStore(
        gateway,
        max_responses=gateway.config.max_stored_responses,
        max_bytes=gateway.config.max_stored_response_bytes,
    )
    batch_store = BatchStore(
        FileStore(gateway.config.files_dir or gateway.config.data_dir / "files"),
        max_files=gateway.config.max_stored_files,
        max_bytes=gateway.config.max_stored_file_bytes,
        max_open_batches=gateway.config.max_open_batches,
    )
    worker = BatchWorker(gateway, batch_store)
    if resumes_batches:
        gateway.when_started(worker.wake)
    routes = [*batch_routes(gateway, batch_store, worker), *api_routes(gateway, store)]
    pages_api = URLRouter(routes)
    unhandled = UnhandledRequests(gateway)
    api = with_cors(pages_api, gateway.config, on_refused=unhandled.refused_at)
    pages = unhandled.recorded_where_refused(django_app)
    bench = with_cors(pages, gateway.config, on_refused=unhandled.refused_at)

    async def http(scope: Any, receive: Any, send: Any) -> None:
        path = api_path(scope["path"])
        of_playground = scope["path"].startswith(PLAYGROUND_PATH)
        if of_playground and (by_login := path_by_login(scope["path"])) is not None:
            known = await with_login(scope, django_app)
            await pages_api({**known, "path": by_login}, receive, send)
        elif scope["path"].startswith(BENCH_PATH):
            await bench(scope, receive, send)
        elif path is None:
            await pages(scope, receive, send)
        else:
            deployment = deployment_of(scope["path"])
            await api({**scope, "path": path, "deployment": deployment}, receive, send)

    socket = ResponseSocket.as_asgi(gateway=gateway, store=store)

    async def websocket(scope: Any, receive: Any, send: Any) -> None:
        application = socket if RESPONSES_PATH.fullmatch(scope["path"]) else unhandled.no_socket
        await application(scope, receive, send)

    return ProtocolTypeRouter(
        {
            "http": http,
            "websocket": websocket,
            "lifespan": LifespanConsumer(gateway, metrics_endpoint),
        }
    )


def api_routes(gateway: Gateway, store: ResponseStore) -> list[URLPattern]:
    chat = {"parse": openai_chat.parse, "endpoint": "/v1/chat/completions"}
    completions = {"parse": openai_completions.parse, "endpoint": "/v1/completions"}
    messages = {
        "parse": anthropic_messages.parse,
        "errors": anthropic_errors,
        "endpoint": "/v1/messages",
    }
    passed = [
        (rf"^{one.path.removeprefix('/')}/?$", PassThroughConsumer, {"passed": one})
        for one in ENDPOINTS
    ]
    kept = {"store": store, "runs": BackgroundRuns(gateway, store)}
    response = r"^v1/responses/(?P<response_id>[^/]+)"
    table: list[Route] = [
        (r"^v1/chat/completions/?$", generate.GenerationConsumer, chat),
        (r"^v1/completions/?$", generate.GenerationConsumer, completions),
        (r"^v1/embeddings/?$", generate.EmbeddingsConsumer, {}),
        *passed,
        (r"^v1/messages/?$", generate.GenerationConsumer, messages),
        (r"^v1/messages/count_tokens/?$", tokenize.MessageTokenCountConsumer, {}),
        (r"^v1/messages/", UnknownUrlConsumer, {"errors": anthropic_errors}),
        (r"^(v1/)?score/?$", generate.ScoreConsumer, {}),
        (r"^(v1/)?rerank/?$", generate.RerankConsumer, {}),
        (r"^v2/rerank/?$", generate.RerankConsumer, {"version": 2}),
        (r"^v1/responses/?$", responses.ResponsesConsumer, kept),
        (r"^v1/responses/input_tokens/?$", tokenize.ResponseTokenCountConsumer, {"store": store}),
        (r"^v1/responses/compact/?$", responses.CompactionConsumer, {"store": store}),
        (response + r"/input_items/?$", responses.InputItemsConsumer, kept),
        (response + r"/cancel/?$", responses.CancelResponseConsumer, kept),
        (response + r"/?$", responses.ResponseConsumer, kept),
        (r"^v1/models/?$", ModelListConsumer, {}),
        (r"(?s)^v1/models/(?P<name>.+?)/?$", ModelConsumer, {}),
        (r"(?s)^v1(?:/.*)?$", UnknownUrlConsumer, {}),
        (r"^tokenize/?$", tokenize.TokenizeConsumer, {}),
        (r"^detokenize/?$", tokenize.DetokenizeConsumer, {}),
        (r"^tokenizer_info/?$", tokenize.TokenizerInfoConsumer, {}),
        (r"^openapi\.json$", OpenApiConsumer, {}),
        *_ollama(),
        (r"^health/?$", HealthConsumer, {}),
        (r"^ping/?$", PingConsumer, {}),
    ]
    return _patterns(table, gateway)


def batch_routes(gateway: Gateway, store: BatchStore, worker: BatchWorker) -> list[URLPattern]:
    """The URL patterns of files and batches, before those of ``api_routes``, which have no further
    paths under these."""
    file, batch = r"^v1/files/(?P<name>[^/]+)", r"^v1/batches/(?P<name>[^/]+)"
    messages = r"^v1/messages/batches"
    one = messages + r"/(?P<name>[^/]+)"
    consumers = {
        r"^v1/files/?$": batches.FilesConsumer,
        file + r"/content/?$": batches.FileContentConsumer,
        file + r"/?$": batches.FileConsumer,
        r"^v1/batches/?$": batches.BatchesConsumer,
        batch + r"/cancel/?$": batches.CancelBatchConsumer,
        batch + r"/?$": batches.BatchConsumer,
        messages + r"/?$": batches.MessageBatchesConsumer,
        one + r"/cancel/?$": batches.CancelMessageBatchConsumer,
        one + r"/results/?$": batches.MessageBatchResultsConsumer,
        one + r"/?$": batches.MessageBatchConsumer,
    }
    made = {"store": store, "worker": worker}
    return _patterns([(path, consumer, made) for path, consumer in consumers.items()], gateway)


def _ollama() -> list[Route]:
    """Exact paths, each of ``OLLAMA_PATHS``: the others under /api are Django's."""
    consumers: dict[str, tuple[Any, dict[str, Any]]] = {
        "/api/chat": (ollama.OllamaConsumer, {"parse": ollama_chat.parse}),
        "/api/generate": (ollama.OllamaConsumer, {"parse": ollama_chat.parse_generate}),
        "/api/embed": (ollama.OllamaEmbedConsumer, {}),
        "/api/embeddings": (ollama.OllamaEmbedConsumer, {}),
        "/api/tags": (ollama.OllamaModelsConsumer, {}),
        "/api/ps": (ollama.OllamaModelsConsumer, {}),
        **dict.fromkeys(ollama.OPERATORS, (ollama.OllamaOperatorsConsumer, {})),
    }
    routes: list[Route] = [
        (f"^{path[1:]}$", consumer, {**options, "endpoint": path})
        for path, (consumer, options) in consumers.items()
    ]
    routes += [
        (r"^api/show$", ollama.OllamaShowConsumer, {}),
        (r"^api/pull$", ollama.OllamaPullConsumer, {}),
        (r"^api/version$", ollama.OllamaVersionConsumer, {}),
    ]
    assert {f"/{path[1:-1]}" for path, _, _ in routes} == OLLAMA_PATHS, "a path without an answer"
    return routes


def _patterns(routes: Iterable[Route], gateway: Gateway) -> list[URLPattern]:
    return [
        re_path(path, consumer.as_asgi(gateway=gateway, **options))
        for path, consumer, options in routes
    ]
