"""POST /v1/responses/compact: the model is asked for a summary, which is kept nowhere here."""

from __future__ import annotations

from inference.gateway.consumers import ApiConsumer
from inference.gateway.gateway import Gateway
from inference.gateway.generation import unix_time_s
from inference.gateway.response_store import ResponseStore
from inference.gateway.running import run_request
from inference.protocol.events import (
    ChoiceFinished,
    Delta,
    Failure,
    Finished,
    FinishReason,
    Usage,
)
from inference.protocol.generation import GenerationRequest
from inference.wire import openai_responses_compact, openai_responses_errors
from inference.wire.errors import RequestFailedError


class CompactionConsumer(ApiConsumer):
    method = "POST"
    endpoint = "/v1/responses/compact"

    def __init__(self, *, gateway: Gateway, store: ResponseStore) -> None:
        super().__init__(gateway=gateway, errors=openai_responses_errors)
        self._store = store

    async def answer(self, body: bytes) -> None:
        await self.respond(200, await self._compacted(body))

    async def _compacted(self, body: bytes) -> bytes:
        asked = self.parsed(openai_responses_compact.parse, body)
        history = await self._store.history(asked.previous_response_id, self.call.who)
        request = await self._store.continued(asked, self.call.who, history)
        summary, usage = await self._summary(openai_responses_compact.summary_request(request))
        return openai_responses_compact.body(
            [*history, *request.items],
            summary,
            usage,
            request_id=self.request_id,
            created_unix_s=unix_time_s(),
        )

    async def _summary(self, request: GenerationRequest) -> tuple[str, Usage]:
        """Raises ``ApiError``, also for one that is cut short or says nothing: what it is to stand
        for would be lost."""
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
        summary = "".join(texts).strip()
        if reason != "stop":
            raise openai_responses_compact.unfinished(reason, usage)
        if not summary:
            raise RequestFailedError(
                Failure(code="internal_error", message="The model wrote no summary.")
            )
        return summary, usage
