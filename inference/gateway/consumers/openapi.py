"""GET /openapi.json: what this gateway answers, for tools that read such documents."""

from __future__ import annotations

from functools import cache

from inference.gateway.consumers.api_consumer import ApiConsumer
from inference.wire.openapi import document_bytes


class OpenApiConsumer(ApiConsumer):
    endpoint = "/openapi.json"
    scope_needed = None

    async def answer(self, body: bytes) -> None:
        await self.respond(200, _document())


@cache
def _document() -> bytes:
    return document_bytes()
