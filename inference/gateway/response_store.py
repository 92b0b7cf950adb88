"""The gateway's way to stored responses: what a request builds on, keeping it, reading it back.

Every failure becomes an ``ApiError``: nothing is kept or lost silently.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from inference.conversations import selectors, services
from inference.conversations.errors import (
    PreviousResponseMissingError,
    PreviousResponseUnfinishedError,
)
from inference.conversations.records import ResponseRecord
from inference.gateway.database import DatabaseThreads
from inference.wire.errors import (
    InvalidRequestError,
    PreviousResponseNotFoundError,
    ResponseNotFoundError,
)
from inference.wire.openai_responses import ResponsesRequest
from inference.wire.openai_responses_input import InputItem, items, with_ids


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

    async def continued(self, request: ResponsesRequest) -> ResponsesRequest:
        """The request with everything in it that it builds on. Raises ``ApiError`` where that is
        not stored."""
        if request.previous_response_id is None and not request.references:
            return request
        history: list[InputItem] = []
        if request.previous_response_id is not None:
            history = _read_back(await self._history(request.previous_response_id))
        wanted = [reference.id for reference in request.references]
        found = await self._database.query(lambda: selectors.items_find(wanted)) if wanted else {}
        stored = {item_id: _read_back([item])[0] for item_id, item in found.items()}
        return request.continued(history, stored)

    async def save(self, record: ResponseRecord) -> None:
        await self._database.query(lambda: services.response_save(record=record))

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

    async def _history(self, response_id: str) -> list[dict[str, Any]]:
        def read() -> list[dict[str, Any]]:
            try:
                return selectors.history_items(response_id)
            except PreviousResponseMissingError as error:
                raise PreviousResponseNotFoundError(error.message) from error
            except PreviousResponseUnfinishedError as error:
                raise InvalidRequestError(error.message, param="previous_response_id") from error

        return await self._database.query(read)


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


def _read_back(stored: list[dict[str, Any]]) -> list[InputItem]:
    """Items as the parser reads them: what was stored is what it once took or what was answered."""
    return [items([item], "stored")[0] for item in stored]
