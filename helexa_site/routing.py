"""Routes paths: the API to our consumers, everything else to Django."""

from __future__ import annotations

import re
from typing import Any

from channels.routing import ProtocolTypeRouter, URLRouter
from django.urls import URLPattern, re_path

from inference.batches.files import FileStore
from inference.gateway.batches.endpoints import (
    BatchConsumer,
    BatchesConsumer,
    CancelBatchConsumer,
    CancelMessageBatchConsumer,
    FileConsumer,
    FileContentConsumer,
    FilesConsumer,
    MessageBatchConsumer,
    MessageBatchesConsumer,
    MessageBatchResultsConsumer,
)
from inference.gateway.batches.store import BatchStore
from inference.gateway.batches.worker import BatchWorker
from inference.gateway.consumers.api_consumer import OpenApiConsumer, UnknownUrlConsumer
from inference.gateway.consumers.generate import (
    EmbeddingsConsumer,
    GenerationConsumer,
    RerankConsumer,
    ScoreConsumer,
)
from inference.gateway.consumers.health import HealthConsumer, PingConsumer
from inference.gateway.consumers.models import ModelConsumer, ModelListConsumer
from inference.gateway.consumers.ollama import (
    OPERATORS,
    OllamaConsumer,
    OllamaEmbedConsumer,
    OllamaModelsConsumer,
    OllamaOperatorsConsumer,
    OllamaPullConsumer,
    OllamaShowConsumer,
    OllamaVersionConsumer,
)
from inference.gateway.consumers.tokenize import (
    DetokenizeConsumer,
    MessageTokenCountConsumer,
    ResponseTokenCountConsumer,
    TokenizeConsumer,
    TokenizerInfoConsumer,
)
from inference.gateway.gateway import Gateway, LifespanConsumer
from inference.gateway.metrics.endpoint import MetricsEndpoint
from inference.gateway.responses.background import BackgroundRuns
from inference.gateway.responses.consumer import (
    CancelResponseConsumer,
    CompactionConsumer,
    InputItemsConsumer,
    ResponseConsumer,
    ResponsesConsumer,
)
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
    chat = GenerationConsumer.as_asgi(
        gateway=gateway, parse=openai_chat.parse, endpoint="/v1/chat/completions"
    )
    completions = GenerationConsumer.as_asgi(
        gateway=gateway, parse=openai_completions.parse, endpoint="/v1/completions"
    )
    messages = GenerationConsumer.as_asgi(
        gateway=gateway,
        parse=anthropic_messages.parse,
        errors=anthropic_errors,
        endpoint="/v1/messages",
    )
    count_tokens = MessageTokenCountConsumer.as_asgi(gateway=gateway)
    no_messages = UnknownUrlConsumer.as_asgi(gateway=gateway, errors=anthropic_errors)
    return [
        re_path(r"^v1/chat/completions/?$", chat),
        re_path(r"^v1/completions/?$", completions),
        re_path(r"^v1/embeddings/?$", EmbeddingsConsumer.as_asgi(gateway=gateway)),
        *(
            re_path(
                rf"^{one.path.removeprefix('/')}/?$",
                PassThroughConsumer.as_asgi(gateway=gateway, passed=one),
            )
            for one in ENDPOINTS
        ),
        re_path(r"^v1/messages/?$", messages),
        re_path(r"^v1/messages/count_tokens/?$", count_tokens),
        re_path(r"^v1/messages/", no_messages),
        re_path(r"^(v1/)?score/?$", ScoreConsumer.as_asgi(gateway=gateway)),
        re_path(r"^(v1/)?rerank/?$", RerankConsumer.as_asgi(gateway=gateway)),
        re_path(r"^v2/rerank/?$", RerankConsumer.as_asgi(gateway=gateway, version=2)),
        *_responses(gateway, store),
        re_path(r"^v1/models/?$", ModelListConsumer.as_asgi(gateway=gateway)),
        re_path(r"(?s)^v1/models/(?P<name>.+?)/?$", ModelConsumer.as_asgi(gateway=gateway)),
        re_path(r"(?s)^v1(?:/.*)?$", UnknownUrlConsumer.as_asgi(gateway=gateway)),
        re_path(r"^tokenize/?$", TokenizeConsumer.as_asgi(gateway=gateway)),
        re_path(r"^detokenize/?$", DetokenizeConsumer.as_asgi(gateway=gateway)),
        re_path(r"^tokenizer_info/?$", TokenizerInfoConsumer.as_asgi(gateway=gateway)),
        re_path(r"^openapi\.json$", OpenApiConsumer.as_asgi(gateway=gateway)),
        *_ollama(gateway),
        re_path(r"^health/?$", HealthConsumer.as_asgi(gateway=gateway)),
        re_path(r"^ping/?$", PingConsumer.as_asgi(gateway=gateway)),
    ]


def batch_routes(gateway: Gateway, store: BatchStore, worker: BatchWorker) -> list[URLPattern]:
    """The URL patterns of files and batches, before those of ``api_routes``, which have no further
    paths under these."""
    made = {"gateway": gateway, "store": store, "worker": worker}
    file, batch = r"^v1/files/(?P<name>[^/]+)", r"^v1/batches/(?P<name>[^/]+)"
    messages = r"^v1/messages/batches"
    one = messages + r"/(?P<name>[^/]+)"
    return [
        re_path(r"^v1/files/?$", FilesConsumer.as_asgi(**made)),
        re_path(file + r"/content/?$", FileContentConsumer.as_asgi(**made)),
        re_path(file + r"/?$", FileConsumer.as_asgi(**made)),
        re_path(r"^v1/batches/?$", BatchesConsumer.as_asgi(**made)),
        re_path(batch + r"/cancel/?$", CancelBatchConsumer.as_asgi(**made)),
        re_path(batch + r"/?$", BatchConsumer.as_asgi(**made)),
        re_path(messages + r"/?$", MessageBatchesConsumer.as_asgi(**made)),
        re_path(one + r"/cancel/?$", CancelMessageBatchConsumer.as_asgi(**made)),
        re_path(one + r"/results/?$", MessageBatchResultsConsumer.as_asgi(**made)),
        re_path(one + r"/?$", MessageBatchConsumer.as_asgi(**made)),
    ]


def _ollama(gateway: Gateway) -> list[URLPattern]:
    """Exact paths, each of ``OLLAMA_PATHS``: the others under /api are Django's."""
    parsers = {"/api/chat": ollama_chat.parse, "/api/generate": ollama_chat.parse_generate}
    consumers = {
        "/api/show": OllamaShowConsumer.as_asgi(gateway=gateway),
        "/api/pull": OllamaPullConsumer.as_asgi(gateway=gateway),
        "/api/version": OllamaVersionConsumer.as_asgi(gateway=gateway),
        **{
            path: OllamaConsumer.as_asgi(gateway=gateway, parse=parse, endpoint=path)
            for path, parse in parsers.items()
        },
        **{
            path: OllamaEmbedConsumer.as_asgi(gateway=gateway, endpoint=path)
            for path in ("/api/embed", "/api/embeddings")
        },
        **{
            path: OllamaModelsConsumer.as_asgi(gateway=gateway, endpoint=path)
            for path in ("/api/tags", "/api/ps")
        },
        **{
            path: OllamaOperatorsConsumer.as_asgi(gateway=gateway, endpoint=path)
            for path in OPERATORS
        },
    }
    assert consumers.keys() == OLLAMA_PATHS, "a path without an answer"
    return [re_path(f"^{path[1:]}$", consumer) for path, consumer in consumers.items()]


def _responses(gateway: Gateway, store: ResponseStore) -> list[URLPattern]:
    kept = {"gateway": gateway, "store": store, "runs": BackgroundRuns(gateway, store)}
    count_tokens = ResponseTokenCountConsumer.as_asgi(gateway=gateway, store=store)
    compact = CompactionConsumer.as_asgi(gateway=gateway, store=store)
    one = r"^v1/responses/(?P<response_id>[^/]+)"
    return [
        re_path(r"^v1/responses/?$", ResponsesConsumer.as_asgi(**kept)),
        re_path(r"^v1/responses/input_tokens/?$", count_tokens),
        re_path(r"^v1/responses/compact/?$", compact),
        re_path(one + r"/input_items/?$", InputItemsConsumer.as_asgi(**kept)),
        re_path(one + r"/cancel/?$", CancelResponseConsumer.as_asgi(**kept)),
        re_path(one + r"/?$", ResponseConsumer.as_asgi(**kept)),
    ]
