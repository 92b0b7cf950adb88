"""POST /v1/responses/compact: the model is asked for a summary, which is kept nowhere here."""

from __future__ import annotations

from inference.gateway.consumers.api_consumer import ApiConsumer
from inference.gateway.consumers.generate import unix_time_s
from inference.gateway.gateway import Gateway
from inference.gateway.request.run import run_request
from inference.gateway.responses.store import ResponseStore
from inference.protocol.events import (
    ChoiceFinished,
    Delta,
    Finished,
    FinishReason,
    Usage,
)
from inference.protocol.generation import GenerationRequest
from inference.wire.openai.responses import compact as openai_responses_compact
from inference.wire.openai.responses import errors as openai_responses_errors
from inference.wire.openai.responses.summary import settled


class CompactionConsumer(ApiConsumer):
    method = "POST"
    endpoint = "/v1/responses/compact"

    def __init__(self, *, gateway: Gateway, store: ResponseStore) -> None:
        super().__init__(gateway=gateway, errors=openai_responses_errors)
        self._store = store

    async def answer(self, body: bytes) -> None:
        await self.respond(200, await self._compacted(body))

    async def _compacted(self, body: bytes) -> bytes:
        asked = await self.read(openai_responses_compact.parse, body)
        history = await self._store.history(asked.previous_response_id, self.call.who)
        request = await self._store.continued(asked, self.call.who, history)
        conversation = [*history, *request.items]
        written, reason, usage = await self._written(
            openai_responses_compact.summary_request(request)
        )
        return openai_responses_compact.body(
            conversation,
            settled(written, reason, usage, conversation),
            usage,
            request_id=self.request_id,
            created_unix_s=unix_time_s(),
        )

    async def _written(self, request: GenerationRequest) -> tuple[str, FinishReason, Usage]:
        """Raises ``ApiError``."""
        texts: list[str] = []
        reason: FinishReason = "stop"
        usage = None
        async with run_request(self.gateway, self.call, request, abort=self.abort) as stream:
            while usage is None:
                for event in await stream.next_events():
                    match event:
                        case Delta():
                            texts.append(event.text)
                        case ChoiceFinished():
                            reason = event.reason
                        case Finished():
                            usage = event.usage
        return "".join(texts), reason, usage
