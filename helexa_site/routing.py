"""Routes paths: the API to our consumers, everything else to Django."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from channels.routing import ProtocolTypeRouter

from inference.batches.files import FileStore
from inference.gateway.background_responses import BackgroundRuns
from inference.gateway.batch_store import BatchStore
from inference.gateway.batch_worker import BatchWorker
from inference.gateway.consumers import ollama
from inference.gateway.consumers.api_consumer import Answer, ApiConsumer, Endpoint
from inference.gateway.consumers.batches import (
    BatchesConsumer,
    FilesConsumer,
    MessageBatchesConsumer,
)
from inference.gateway.consumers.generate import (
    GenerationConsumer,
    TokenCountConsumer,
    TokenizeConsumer,
    VectorsConsumer,
)
from inference.gateway.consumers.health import HealthConsumer
from inference.gateway.consumers.models import ModelsConsumer
from inference.gateway.consumers.responses import ResponsesConsumer
from inference.gateway.consumers.responses_websocket import ResponseSocket
from inference.gateway.gateway import Gateway, LifespanConsumer
from inference.gateway.metrics_endpoint import MetricsEndpoint
from inference.gateway.response_store import ResponseStore
from inference.gateway.server.paths import (
    OLLAMA_PATHS,
    UNKNOWN_ENDPOINT,
    api_path,
    api_path_of,
    deployment_of,
)
from inference.gateway.server.unhandled import UnhandledRequests
from inference.gateway.upstreams.passed import PassThroughConsumer
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.error_envelopes import (
    ErrorDialect,
    anthropic_errors,
    ollama_errors,
    openai_errors,
    openai_responses_errors,
)
from inference.wire.ollama import chat as ollama_chat
from inference.wire.openai import chat as openai_chat
from inference.wire.openai import completions as openai_completions
from inference.wire.openai.passed import ENDPOINTS
from metering.playground.login import PREFIX as PLAYGROUND_PATH
from metering.playground.login import path_by_login, with_login
from metering.principal import Scope

BENCH_PATH = "/api/bench/"
"""Pages of other origins may read it."""
RESPONSES_PATH = re.compile(r"(/v1)?/responses/?")


def errors_of(path: bytes) -> ErrorDialect:
    known = api_path_of(path) or ""
    if known in OLLAMA_PATHS:
        return ollama_errors
    if known.startswith("/v1/responses"):
        return openai_responses_errors
    return anthropic_errors if known.startswith("/v1/messages") else openai_errors


def build_application(
    gateway: Gateway,
    *,
    django_app: Any,
    metrics_endpoint: MetricsEndpoint | None = None,
    resumes_batches: bool = False,
) -> ProtocolTypeRouter:
    """``metrics_endpoint`` follows ASGI's lifespan. ``resumes_batches``: those of previous
    instances at the start; else once there is a new batch."""
    store = ResponseStore(
        gateway,
        max_responses=gateway.config.max_stored_responses,
        max_bytes=gateway.config.max_stored_response_bytes,
    )
    batch_store = BatchStore(
        FileStore(gateway.config.stored_files_dir),
        max_files=gateway.config.max_stored_files,
        max_bytes=gateway.config.max_stored_file_bytes,
        max_open_batches=gateway.config.max_open_batches,
    )
    worker = BatchWorker(gateway, batch_store)
    if resumes_batches:
        gateway.when_started(worker.wake)
    table = api_table(gateway, store, batch_store, worker)
    pages_api = Endpoints(gateway, table)
    unhandled = UnhandledRequests(gateway)
    api = unhandled.with_cors(pages_api)
    pages = unhandled.recorded_where_refused(django_app)
    bench = unhandled.with_cors(pages)

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


GET, POST, DELETE = "GET", "POST", "DELETE"
SCOPES: dict[str, Scope | None] = {
    **dict.fromkeys(("/health", "/ping", "/openapi.json", UNKNOWN_ENDPOINT)),
    "/api/pull": Scope.FLEET_WRITE,
}
"""All other paths need ``INFERENCE``."""
FORMS = {"/v1/files", *(one.path for one in ENDPOINTS if one.is_form)}
Row = tuple[type[ApiConsumer], Mapping[str, Any], Mapping[str, Mapping[str, Answer]]]
"""Consumer, options, and its methods by path and HTTP method."""


class Endpoints:
    def __init__(self, gateway: Gateway, table: list[Row]) -> None:
        self._by_path: dict[str, Any] = {}
        self._with_id: list[tuple[re.Pattern[str], Any]] = []
        for consumer, options, answers_by_path in table:
            for path, answers in answers_by_path.items():
                app = _application(
                    gateway, path, consumer, answers, errors_of(path.encode()), options
                )
                if "{id}" not in path:
                    self._by_path[path] = app
                    continue
                # Only a model's name may hold slashes.
                id_ = "(.+?)" if path.startswith("/v1/models") else "([^/]+)"
                pattern = re.compile(path.replace("{id}", id_), re.DOTALL)
                self._with_id.append((pattern, app))
        self._unknown: dict[ErrorDialect, Any] = {
            errors: _application(gateway, UNKNOWN_ENDPOINT, ApiConsumer, {}, errors, {})
            for errors in (openai_errors, openai_responses_errors, anthropic_errors)
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"].removesuffix("/")
        application = self._by_path.get(path)
        if application is None:
            application = self._unknown[errors_of(path.encode("latin-1", "replace"))]
            for pattern, named in self._with_id:
                if found := pattern.fullmatch(path):
                    application, scope = named, {**scope, "id": found[1]}
                    break
        await application(scope, receive, send)


def _application(
    gateway: Gateway,
    path: str,
    consumer: type[ApiConsumer],
    answers: Mapping[str, Answer],
    errors: ErrorDialect,
    options: Mapping[str, Any],
) -> Any:
    endpoint = Endpoint(
        name=path,
        answers=answers,
        errors=errors,
        scope=SCOPES.get(path, Scope.INFERENCE),
        is_form=path in FORMS,
    )
    return consumer.as_asgi(gateway=gateway, endpoint=endpoint, **options)


def api_table(
    gateway: Gateway, store: ResponseStore, batch_store: BatchStore, worker: BatchWorker
) -> list[Row]:
    generated = {POST: GenerationConsumer.generate}
    ollamas = {POST: ollama.OllamaConsumer.generate}
    batches = {"store": batch_store, "worker": worker}
    options: dict[type[ApiConsumer], Mapping[str, Any]] = {
        TokenCountConsumer: {"store": store},
        ResponsesConsumer: {"store": store, "runs": BackgroundRuns(gateway, store)},
        **dict.fromkeys((FilesConsumer, BatchesConsumer, MessageBatchesConsumer), batches),
    }
    answers: dict[type[ApiConsumer], Mapping[str, Mapping[str, Answer]]] = {
        VectorsConsumer: {
            "/v1/embeddings": {POST: VectorsConsumer.embeddings},
            "/v1/score": {POST: VectorsConsumer.score},
            "/v1/rerank": {POST: VectorsConsumer.rerank},
            "/v2/rerank": {POST: VectorsConsumer.rerank},
        },
        TokenCountConsumer: {
            "/v1/messages/count_tokens": {POST: TokenCountConsumer.count_messages},
            "/v1/responses/input_tokens": {POST: TokenCountConsumer.count_response},
        },
        ResponsesConsumer: {
            "/v1/responses": {POST: ResponsesConsumer.generate},
            "/v1/responses/compact": {POST: ResponsesConsumer.compact},
            "/v1/responses/{id}/input_items": {GET: ResponsesConsumer.input_items},
            "/v1/responses/{id}/cancel": {POST: ResponsesConsumer.cancel},
            "/v1/responses/{id}": {
                GET: ResponsesConsumer.retrieve,
                DELETE: ResponsesConsumer.delete,
            },
        },
        ModelsConsumer: {
            "/v1/models": {GET: ModelsConsumer.models},
            "/v1/models/{id}": {GET: ModelsConsumer.model},
        },
        FilesConsumer: {
            "/v1/files": {GET: FilesConsumer.list_files, POST: FilesConsumer.add_file},
            "/v1/files/{id}/content": {GET: FilesConsumer.content},
            "/v1/files/{id}": {GET: FilesConsumer.file, DELETE: FilesConsumer.delete_file},
        },
        BatchesConsumer: {
            "/v1/batches": {GET: BatchesConsumer.list_batches, POST: BatchesConsumer.create},
            "/v1/batches/{id}/cancel": {POST: BatchesConsumer.cancel},
            "/v1/batches/{id}": {GET: BatchesConsumer.batch},
        },
        MessageBatchesConsumer: {
            "/v1/messages/batches": {
                GET: MessageBatchesConsumer.list_batches,
                POST: MessageBatchesConsumer.create,
            },
            "/v1/messages/batches/{id}/cancel": {POST: MessageBatchesConsumer.cancel},
            "/v1/messages/batches/{id}/results": {GET: MessageBatchesConsumer.results},
            "/v1/messages/batches/{id}": {
                GET: MessageBatchesConsumer.batch,
                DELETE: MessageBatchesConsumer.delete,
            },
        },
        TokenizeConsumer: {
            "/tokenize": {POST: TokenizeConsumer.tokenize},
            "/detokenize": {POST: TokenizeConsumer.detokenize},
            "/tokenizer_info": {GET: TokenizeConsumer.tokenizer_info},
        },
        ollama.OllamaEmbedConsumer: {
            "/api/embed": {POST: ollama.OllamaEmbedConsumer.embed},
            "/api/embeddings": {POST: ollama.OllamaEmbedConsumer.embeddings},
        },
        ollama.OllamaModelsConsumer: {
            "/api/tags": {GET: ollama.OllamaModelsConsumer.tags},
            "/api/ps": {GET: ollama.OllamaModelsConsumer.ps},
            "/api/show": {POST: ollama.OllamaModelsConsumer.show},
            "/api/version": {GET: ollama.OllamaModelsConsumer.version},
            **dict.fromkeys(
                ollama.OPERATORS,
                dict.fromkeys((POST, DELETE), ollama.OllamaModelsConsumer.refuse_operators),
            ),
        },
        HealthConsumer: {
            "/health": {GET: HealthConsumer.health},
            "/ping": dict.fromkeys((GET, POST), HealthConsumer.health),
            "/openapi.json": {GET: HealthConsumer.openapi},
        },
        ollama.OllamaPullConsumer: {"/api/pull": {POST: ollama.OllamaPullConsumer.pull}},
    }
    return [
        (GenerationConsumer, {"parse": openai_chat.parse}, {"/v1/chat/completions": generated}),
        (GenerationConsumer, {"parse": openai_completions.parse}, {"/v1/completions": generated}),
        (GenerationConsumer, {"parse": anthropic_messages.parse}, {"/v1/messages": generated}),
        (ollama.OllamaConsumer, {"parse": ollama_chat.parse}, {"/api/chat": ollamas}),
        (ollama.OllamaConsumer, {"parse": ollama_chat.parse_generate}, {"/api/generate": ollamas}),
        *(
            (PassThroughConsumer, {"passed": one}, {one.path: {POST: PassThroughConsumer.pass_on}})
            for one in ENDPOINTS
        ),
        *((consumer, options.get(consumer, {}), rows) for consumer, rows in answers.items()),
    ]
