"""POST /v1/responses/compact: the model is asked for a summary, which is kept nowhere here."""

from __future__ import annotations

import logging
import time

from inference.gateway.consumers import ApiConsumer
from inference.gateway.gateway import Gateway
from inference.gateway.generation import log_request, unix_time_s
from inference.gateway.response_store import ResponseStore
from inference.gateway.running import run_request
from inference.protocol.events import ChoiceFinished, Delta, Failure, Finished, Usage
from inference.protocol.generation import GenerationRequest
from inference.wire import openai_responses_compact, openai_responses_errors
from inference.wire.errors import ApiError, RequestFailedError

logger = logging.getLogger(__name__)


class CompactionConsumer(ApiConsumer):
    method = "POST"

    def __init__(self, *, gateway: Gateway, store: ResponseStore) -> None:
        super().__init__(gateway=gateway, errors=openai_responses_errors)
        self._store = store
        self._usage: Usage | None = None

    async def answer(self, body: bytes) -> None:
        started_s = time.perf_counter()
        outcome, model = "cancelled", "-"
        try:
            asked = openai_responses_compact.parse(body, self.context())
            model, previous = asked.generation.model, asked.previous_response_id
            history = [] if previous is None else await self._store.history(previous)
            request = await self._store.continued(asked, history)
            summary = await self._summary(openai_responses_compact.summary_request(request))
            assert self._usage is not None, "the answer has ended"
            compacted = openai_responses_compact.body(
                [*history, *request.items],
                summary,
                self._usage,
                request_id=self.request_id,
                created_unix_s=unix_time_s(),
            )
            await self.respond(200, compacted)
            outcome = "finished"
        except ApiError as error:
            outcome = error.code
            raise
        finally:
            seconds = time.perf_counter() - started_s
            log_request(self.request_id, model, outcome, self._usage, seconds)

    async def _summary(self, request: GenerationRequest) -> str:
        """Raises ``ApiError``, also for one that is cut short or says nothing: what it is to stand
        for would be lost."""
        texts, reason = [], ""
        async with run_request(self.gateway, self.request_id, request, abort=self.abort) as stream:
            while self._usage is None:
                for event in await stream.next_events():
                    match event:
                        case Delta():
                            texts.append(event.text)
                        case ChoiceFinished():
                            reason = event.reason
                        case Finished():
                            self._usage = event.usage
        summary = "".join(texts).strip()
        if reason != "stop":
            message = "The context leaves no room for a whole summary; send less of it."
            raise RequestFailedError(
                Failure(code="context_length_exceeded", message=message, param="messages")
            )
        if not summary:
            raise RequestFailedError(
                Failure(code="internal_error", message="The model wrote no summary.")
            )
        return summary
