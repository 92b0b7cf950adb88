"""Routes paths: the API to our consumers, everything else to Django."""

from __future__ import annotations

import re
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
    pages_api = URLRouter(api_routes(gateway, store, batch_store, worker))
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


def api_routes(
    gateway: Gateway, store: ResponseStore, batch_store: BatchStore, worker: BatchWorker
) -> list[URLPattern]:
    """The first that matches a path counts. A path that is no pattern may end with a slash."""
    kept = {"store": store, "runs": BackgroundRuns(gateway, store)}
    batch = {"store": batch_store, "worker": worker}
    of_anthropic = {"errors": anthropic_errors}
    response, file = "v1/responses/(?P<response_id>[^/]+)", "v1/files/(?P<name>[^/]+)"
    own_batch, message_batch = "v1/batches/(?P<name>[^/]+)", "v1/messages/batches/(?P<name>[^/]+)"
    table: list[Route] = [
        _generation("/v1/chat/completions", openai_chat.parse),
        _generation("/v1/completions", openai_completions.parse),
        _generation("/v1/messages", anthropic_messages.parse, **of_anthropic),
        ("v1/embeddings", generate.EmbeddingsConsumer, {}),
        *((one.path[1:], PassThroughConsumer, {"passed": one}) for one in ENDPOINTS),
        ("v1/files", batches.FilesConsumer, batch),
        (f"{file}/content", batches.FileContentConsumer, batch),
        (file, batches.FileConsumer, batch),
        ("v1/batches", batches.BatchesConsumer, batch),
        (f"{own_batch}/cancel", batches.CancelBatchConsumer, batch),
        (own_batch, batches.BatchConsumer, batch),
        ("v1/messages/batches", batches.MessageBatchesConsumer, batch),
        (f"{message_batch}/cancel", batches.CancelMessageBatchConsumer, batch),
        (f"{message_batch}/results", batches.MessageBatchResultsConsumer, batch),
        (message_batch, batches.MessageBatchConsumer, batch),
        ("v1/messages/count_tokens", tokenize.MessageTokenCountConsumer, {}),
        ("^v1/messages/", UnknownUrlConsumer, of_anthropic),
        ("(v1/)?score", generate.ScoreConsumer, {}),
        ("(v1/)?rerank", generate.RerankConsumer, {}),
        ("v2/rerank", generate.RerankConsumer, {"version": 2}),
        ("v1/responses", responses.ResponsesConsumer, kept),
        ("v1/responses/input_tokens", tokenize.ResponseTokenCountConsumer, {"store": store}),
        ("v1/responses/compact", responses.CompactionConsumer, {"store": store}),
        (f"{response}/input_items", responses.InputItemsConsumer, kept),
        (f"{response}/cancel", responses.CancelResponseConsumer, kept),
        (response, responses.ResponseConsumer, kept),
        ("v1/models", ModelListConsumer, {}),
        (r"(?s)^v1/models/(?P<name>.+?)/?$", ModelConsumer, {}),
        (r"(?s)^v1(?:/.*)?$", UnknownUrlConsumer, {}),
        ("tokenize", tokenize.TokenizeConsumer, {}),
        ("detokenize", tokenize.DetokenizeConsumer, {}),
        ("tokenizer_info", tokenize.TokenizerInfoConsumer, {}),
        (r"^openapi\.json$", OpenApiConsumer, {}),
        ("health", HealthConsumer, {}),
        ("ping", PingConsumer, {}),
    ]
    return [
        re_path(
            path if "^" in path.partition("/")[0] else f"^{path}/?$",
            consumer.as_asgi(gateway=gateway, **options),
        )
        for path, consumer, options in [*_ollama(), *table]
    ]


def _generation(path: str, parse: Any, **options: Any) -> Route:
    return path[1:], generate.GenerationConsumer, {"parse": parse, "endpoint": path, **options}


def _ollama() -> list[Route]:
    """Exact paths, each of ``OLLAMA_PATHS``: the others under /api are Django's."""
    named: dict[str, tuple[Any, dict[str, Any]]] = {
        "/api/chat": (ollama.OllamaConsumer, {"parse": ollama_chat.parse}),
        "/api/generate": (ollama.OllamaConsumer, {"parse": ollama_chat.parse_generate}),
        "/api/embed": (ollama.OllamaEmbedConsumer, {}),
        "/api/embeddings": (ollama.OllamaEmbedConsumer, {}),
        "/api/tags": (ollama.OllamaModelsConsumer, {}),
        "/api/ps": (ollama.OllamaModelsConsumer, {}),
        **dict.fromkeys(ollama.OPERATORS, (ollama.OllamaOperatorsConsumer, {})),
    }
    consumers = {path: (one, {**more, "endpoint": path}) for path, (one, more) in named.items()}
    consumers |= {
        "/api/show": (ollama.OllamaShowConsumer, {}),
        "/api/pull": (ollama.OllamaPullConsumer, {}),
        "/api/version": (ollama.OllamaVersionConsumer, {}),
    }
    assert consumers.keys() == OLLAMA_PATHS, "a path without an answer"
    return [(f"^{path[1:]}$", consumer, more) for path, (consumer, more) in consumers.items()]
