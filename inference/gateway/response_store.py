"""The gateway's way to stored responses: what a request builds on, keeping it, reading it back.

Every failure becomes an ``ApiError``: nothing is kept or lost silently.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

from inference.conversations import selectors, services
from inference.conversations.errors import (
    PreviousResponseMissingError,
    PreviousResponseUnfinishedError,
)
from inference.conversations.records import ResponseRecord
from inference.gateway.database import DatabaseThreads
from inference.wire.errors import (
    ApiError,
    InvalidRequestError,
    PreviousResponseNotFoundError,
    ResponseNotFoundError,
)
from inference.wire.openai_responses import ResponsesRequest
from inference.wire.openai_responses_input import InputItem, items, with_ids

logger = logging.getLogger(__name__)


class ResponseStore:
    """Each method raises 503 database_unavailable when the database is away."""

    def __init__(self) -> None:
        self._database = DatabaseThreads("responses")

    async def find(self, response_id: str) -> ResponseRecord:
        """Raises ``ResponseNotFoundError``."""
        record = await self._database.query(lambda: selectors.response_find(response_id))
        if record is None:
            raise ResponseNotFoundError(response_id)
        return record

    async def continued(
        self, request: ResponsesRequest, history: Sequence[InputItem] | None = None
    ) -> ResponsesRequest:
        """The request with everything in it that it builds on. ``history`` is what it continues,
        where that is known without the store. Raises ``ApiError`` where something is not stored."""
        if request.previous_response_id is None and not request.references:
            return request
        if history is None:
            history = await self.history(request.previous_response_id)
        wanted = [reference.id for reference in request.references]
        found = await self._database.query(lambda: selectors.items_find(wanted)) if wanted else {}
        stored = {item_id: read_back([item])[0] for item_id, item in found.items()}
        return request.continued(history, stored)

    async def save(self, record: ResponseRecord) -> None:
        await self._database.query(lambda: services.response_save(record=record))

    async def save_failed(self, record: ResponseRecord) -> None:
        """The client has its id, so it may ask for it; it is told of the failure either way."""
        try:
            await self.save(record)
        except ApiError as error:
            logger.error("%s failed and is not stored: %s", record.response["id"], error.code)

    async def progress(self, response: dict[str, Any]) -> bool:
        """``False``: it had ended already, or was deleted."""
        return await self._database.query(lambda: services.response_progress(response=response))

    async def cancel(self, response_id: str) -> None:
        await self._database.query(lambda: services.response_cancel(response_id=response_id))

    async def delete(self, response_id: str) -> None:
        """Raises ``ResponseNotFoundError``."""
        if not await self._database.query(
            lambda: services.response_delete(response_id=response_id)
        ):
            raise ResponseNotFoundError(response_id)

    async def renew_leases(self, response_ids: Collection[str]) -> set[str]:
        """Those that are still active."""
        return await self._database.query(lambda: services.leases_renew(response_ids=response_ids))

    async def history(self, response_id: str | None) -> list[InputItem]:
        """The conversation up to its end; without an id there is none. Raises ``ApiError``."""
        if response_id is None:
            return []

        def read() -> list[dict[str, Any]]:
            try:
                return selectors.history_items(response_id)
            except PreviousResponseMissingError as error:
                raise PreviousResponseNotFoundError(error.message) from error
            except PreviousResponseUnfinishedError as error:
                raise InvalidRequestError(error.message, param="previous_response_id") from error

        return read_back(await self._database.query(read))


def record_of(
    request: ResponsesRequest, response: dict[str, Any], *, request_id: str
) -> ResponseRecord:
    """What is stored of an answer."""
    return ResponseRecord(
        response=response,
        input_items=[item.object for item in with_ids(request.items, request_id)],
        previous_id=request.previous_response_id,
        background=request.background,
    )


def read_back(stored: list[dict[str, Any]]) -> list[InputItem]:
    """Items as the parser reads them: what was stored is what it once took or what was answered."""
    return [items([item], "stored")[0] for item in stored]
