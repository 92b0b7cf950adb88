"""Ollama's API.

A pull downloads to a neuron, for callers who may write the fleet. A client that hangs up ends the
download that it began; the next pull resumes from the bytes so far.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from fleet.catalogue import CatalogueEntry
from fleet.hub import file_facts
from fleet.live.snapshot import FleetSnapshot
from inference.gateway.consumers.api_consumer import UNBUFFERED, ApiConsumer, Headers
from inference.gateway.consumers.generate import GenerationConsumer, VectorsConsumer
from inference.gateway.consumers.models import ListedModelsConsumer, model_card
from inference.gateway.database import pull_cancel, pull_look, pull_offer, pull_start
from inference.loading.sources.hub_sources import hub_schemes
from inference.protocol.events import Failure
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_report import LoadReport
from inference.wire.dialect import Encoder, ParsedRequest
from inference.wire.embeddings import OllamaEmbeddings, parse_old_ollama, parse_ollama
from inference.wire.errors import NotSupportedError, RequestFailedError
from inference.wire.ollama import models as ollama_models
from inference.wire.ollama.answers import Shape
from inference.wire.ollama.chat import OllamaRequest
from inference.wire.ollama.models import OfferedModel, PullState
from metering.audit import Actor, key_actor

LOOK_EVERY_S = 0.5
JSON_LINES: Headers = [(b"content-type", b"application/x-ndjson"), *UNBUFFERED]


class OllamaPullConsumer(ApiConsumer):
    async def pull(self, body: bytes) -> None:
        parse = partial(ollama_models.parse_pull, named_sources=hub_schemes())
        request = await self.parsed(parse, body)
        who = self.call.who
        actor, query = key_actor(who.key or who.account), self.gateway.catalogue.query
        while True:
            state = await query(pull_start, request, actor)
            state = await self._follow(state, actor, streams=request.stream)
            if state.status != "cancelled" or state.is_ours:
                break
        _ensure_succeeded(state)
        if request.source is not None:
            await query(pull_offer, request, state, actor)
        line = ollama_models.progress_line(state)
        if self._response_started:
            await self.send_body(line, last=True)
        else:
            await self.respond(200, line, type_=JSON_LINES[0][1] if request.stream else b"")

    async def _follow(self, state: PullState, actor: Actor, *, streams: bool) -> PullState:
        try:
            while not state.has_ended:
                if streams:
                    if not self._response_started:
                        await self.start_response(200, JSON_LINES)
                    await self.send_body(ollama_models.progress_line(state))
                await asyncio.sleep(LOOK_EVERY_S)
                state = await self.gateway.catalogue.query(pull_look, state)
        except asyncio.CancelledError:
            if self._client_left and state.is_ours:
                self.gateway.spawn(self.gateway.catalogue.query(pull_cancel, state, actor))
            raise
        return state


def _ensure_succeeded(state: PullState) -> None:
    if state.status != "succeeded":
        code = state.failure_code or state.status
        message = state.failure_message or f"The download {state.status}"
        raise RequestFailedError(Failure(code=code, message=message))


OPERATORS = {
    "/api/push": "Models are not published from here.",
    "/api/create": "Models are made by adding them to the catalogue.",
    "/api/copy": "Give the model an alias in the catalogue.",
    "/api/delete": "Models are removed from the catalogue.",
}
CPU = "cpu"


class OllamaConsumer(GenerationConsumer):
    stream_headers: ClassVar[Headers] = JSON_LINES

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._asked_unix_s = time.time()
        self._shape: Shape | None = None

    async def answer_request(self, request: ParsedRequest) -> None:
        assert isinstance(request, OllamaRequest), "this consumer has the parsers of one API"
        self._shape = request.shape
        if request.only_loads:
            await self.last_event(request.load)
            await self.respond(200, request.shape.loaded_body(time.time()))
        else:
            await super().answer_request(request)

    def _encoder(self, request: ParsedRequest) -> Encoder:
        assert isinstance(request, OllamaRequest)
        make = request.stream_encoder if request.stream else request.body_encoder
        encoder = make(request_id=self.request_id, clock=time.time)
        encoder.asked_at(self._asked_unix_s)
        return encoder

    async def _keep_alive(self) -> None:
        assert self._shape is not None, "nothing is kept alive before it is asked for"
        await self._send_frames(self._shape.waiting_line(time.time()), last=False)


class OllamaEmbedConsumer(VectorsConsumer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._asked_unix_s = time.time()

    async def embed(self, body: bytes) -> None:
        await self._answer_with_vectors(await self.parsed(parse_ollama, body))

    async def embeddings(self, body: bytes) -> None:
        await self._answer_with_vectors(await self.parsed(parse_old_ollama, body))

    async def _answer_with_vectors(self, request: OllamaEmbeddings) -> None:
        encoder = request.body_encoder(request_id=self.request_id, clock=time.time)
        encoder.asked_at(self._asked_unix_s)
        await self.respond_with_vectors(request.embedding, encoder)


class OllamaModelsConsumer(ListedModelsConsumer):
    async def tags(self, body: bytes) -> None:
        offered = [offered_model(*listed) for listed in await self.listed()]
        await self.respond(200, ollama_models.tags_body(offered))

    async def ps(self, body: bytes) -> None:
        offered = [offered_model(*listed) for listed in await self.listed()]
        await self.respond(200, ollama_models.ps_body(offered))

    async def show(self, body: bytes) -> None:
        name = await self.parsed(ollama_models.parse_show, body)
        entry, snapshot, base = await self.one_listed(name)
        offered = offered_model(entry, snapshot, base)
        if not offered.architecture:
            facts = await asyncio.to_thread(file_facts, base or entry)
            offered = replace(
                offered,
                architecture=facts.architecture,
                num_parameters=facts.num_parameters or 0,
                card=replace(
                    offered.card, context_tokens=offered.card.context_tokens or facts.context_tokens
                ),
            )
        await self.respond(200, ollama_models.show_body(offered))

    async def version(self, body: bytes) -> None:
        await self.respond(200, ollama_models.version_body())

    async def refuse_operators(self, body: bytes) -> None:
        path = self.call.endpoint
        raise NotSupportedError(f"{path} is the operator's. {OPERATORS[path]}")


def offered_model(
    entry: CatalogueEntry, snapshot: FleetSnapshot, base: CatalogueEntry | None = None
) -> OfferedModel:
    loaded = base or entry
    replicas = snapshot.replicas_of(loaded.name)
    reports = [
        replica.report
        for replica in sorted(replicas, key=lambda one: one.status is not ReplicaStatus.READY)
        if replica.report is not None
    ]
    report = reports[0] if reports else None
    names = (loaded.file or "", loaded.source)
    return OfferedModel(
        card=model_card(entry, snapshot, base=base),
        spec_digest=entry.spec_digest(),
        architecture="" if report is None else report.architecture,
        num_parameters=0 if report is None else report.num_parameters,
        weight_bytes=_known_bytes(loaded) if report is None else report.weight_bytes,
        gpu_bytes=0 if report is None else _gpu_bytes(report),
        format="gguf" if any(name.lower().endswith(".gguf") for name in names) else "",
    )


def _known_bytes(entry: CatalogueEntry) -> int:
    if entry.weight_bytes is None and entry.costs is not None:
        return entry.costs.weight_bytes.cuda
    return entry.weight_bytes or 0


def _gpu_bytes(report: LoadReport) -> int:
    on_gpu = [stage.estimated_bytes for stage in report.stages if stage.device != CPU]
    if not report.stages:
        return 0 if report.device == CPU else report.weight_bytes
    whole = sum(stage.estimated_bytes for stage in report.stages)
    return report.weight_bytes * sum(on_gpu) // max(1, whole)
