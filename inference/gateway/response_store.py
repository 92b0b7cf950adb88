"""The gateway's access to stored responses."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Any

from inference.conversations import services
from inference.conversations.models import (
    ConversationError,
    PreviousResponseMissingError,
    ResponseRecord,
)
from inference.gateway.database import DatabaseThreads
from inference.gateway.gateway import Gateway
from inference.gateway.request.outcome import Call
from inference.protocol.events import Finished
from inference.protocol.refusals import Cause
from inference.quotas import Quota, QuotaFullError, Used
from inference.wire.errors import (
    ApiError,
    InsufficientQuotaError,
    InvalidRequestError,
    PreviousResponseNotFoundError,
    ResponseNotFoundError,
)
from inference.wire.images import ImageReading, images_read
from inference.wire.responses.events import ResponseBodyEncoder, ResponseStreamEncoder
from inference.wire.responses.input import InputItem, items, with_ids
from inference.wire.responses.request import ResponsesRequest
from inference.wire.unknown_fields import unknown_fields_ignored
from metering.principal import Principal

logger = logging.getLogger(__name__)


USAGE_AGE_S = 30.0


class ResponseStore:
    """Each account finds only its own. Raises 503 database_unavailable."""

    def __init__(self, gateway: Gateway, *, max_responses: int, max_bytes: int) -> None:
        self._gateway = gateway
        self.query = DatabaseThreads("responses").query
        self._max_bytes = max_bytes
        # Room for one byte: a response whose bytes pass the rest is kept, the next one is not.
        self._quota = Quota(max_responses, max_bytes - 1)
        self._kept: dict[str, tuple[float, Used]] = {}

    async def ensure_room(self, principal: Principal) -> None:
        """Raises ``InsufficientQuotaError``."""
        account = principal.account
        read_s, used = self._kept.get(account, (-math.inf, Used(0)))
        if time.monotonic() - read_s > USAGE_AGE_S:
            used = await self.query(services.account_usage, account)
            self._kept[account] = time.monotonic(), used
        if used.number >= self._quota.number or used.size_bytes >= self._max_bytes:
            raise self._full(account, used)

    def _full(self, account: str, used: Used) -> InsufficientQuotaError:
        return InsufficientQuotaError(
            f"Account '{account}' keeps {used.number:,} responses of {used.size_bytes:,} bytes;"
            f" it may keep {self._quota.number:,} and {self._max_bytes:,} bytes. Delete some, "
            "or send 'store': false.",
            cause=Cause.STORED,
            param="store",
        )

    async def find(self, response_id: str, principal: Principal) -> ResponseRecord:
        """Raises ``ResponseNotFoundError``."""
        record = await self._read(response_id, principal)
        gateway_id = record.presumed_lost_by
        if gateway_id is None:
            return record
        if await self._gateway.is_gateway_alive(gateway_id):
            return await self._read(response_id, principal, gateway_id)
        await self.query(services.response_lost, response_id=response_id)
        return await self._read(response_id, principal)

    async def _read(
        self, response_id: str, principal: Principal, alive_gateway: str | None = None
    ) -> ResponseRecord:
        record = await self.query(
            services.response_find,
            response_id,
            account=principal.account,
            alive_gateway=alive_gateway,
        )
        if record is None:
            raise ResponseNotFoundError(response_id)
        return record

    async def continued(
        self,
        request: ResponsesRequest,
        principal: Principal,
        history: Sequence[InputItem] | None = None,
    ) -> ResponsesRequest:
        """``history``: what it continues, where the store is not needed. Raises ``ApiError``."""
        if request.previous_response_id is None and not request.references:
            return request
        if history is None:
            history = await self.history(request.previous_response_id, principal)
        wanted = [reference.id for reference in request.references]
        find = services.items_find
        found = await self.query(find, wanted, account=principal.account) if wanted else {}
        stored = {item_id: read_back([item])[0] for item_id, item in found.items()}
        return request.continued(history, stored)

    async def save(self, record: ResponseRecord) -> None:
        """Raises ``InsufficientQuotaError`` where others have used the room meanwhile."""
        try:
            size_bytes = await self.query(
                services.response_save,
                record=record,
                quota=self._quota,
                gateway_id=self._gateway.gateway_id,
            )
        except QuotaFullError as error:
            raise self._full(record.account, error.used) from error
        if record.account in self._kept:
            read_s, used = self._kept[record.account]
            used = Used(used.number + 1, used.size_bytes + size_bytes)
            self._kept[record.account] = read_s, used

    async def save_finished(
        self,
        request: ResponsesRequest,
        encoder: ResponseStreamEncoder | ResponseBodyEncoder,
        event: Finished,
        call: Call,
    ) -> None:
        """Call before the client reads the end: it can build on the id from then on."""
        if request.store:
            response, number = encoder.response_after(event), encoder.next_number
            await self.save(record_of(request, response, call=call, last_event_number=number))

    async def save_failed(
        self, request: ResponsesRequest, encoder: ResponseStreamEncoder, call: Call
    ) -> None:
        """A client that has its id may ask for it."""
        if not request.store or encoder.response is None:
            return
        response, number = encoder.response, encoder.next_number - 1
        try:
            await self.save(record_of(request, response, call=call, last_event_number=number))
        except ApiError as error:
            logger.error("%s failed and is not stored: %s", response["id"], error.code)

    async def cancel(self, response_id: str, principal: Principal) -> None:
        record = await self._read(response_id, principal)
        await self.query(
            services.response_cancel,
            response_id=response_id,
            account=principal.account,
            alive_gateway=record.presumed_lost_by,
        )

    async def delete(self, response_id: str, principal: Principal) -> None:
        """Raises ``ResponseNotFoundError``."""
        account = principal.account
        if not await self.query(services.response_delete, response_id=response_id, account=account):
            raise ResponseNotFoundError(response_id)
        self._kept.pop(account, None)

    async def history(self, response_id: str | None, principal: Principal) -> list[InputItem]:
        """Raises ``ApiError``."""
        if response_id is None:
            return []

        def read() -> list[dict[str, Any]]:
            try:
                return services.history_items(response_id, account=principal.account)
            except PreviousResponseMissingError as error:
                raise PreviousResponseNotFoundError(error.message) from error
            except ConversationError as error:
                raise InvalidRequestError(error.message, param="previous_response_id") from error

        return read_back(await self.query(read))


def record_of(
    request: ResponsesRequest,
    response: dict[str, Any],
    *,
    call: Call,
    last_event_number: int | None = None,
) -> ResponseRecord:
    return ResponseRecord(
        account=call.who.account,
        response=response,
        input_items=[item.object for item in with_ids(request.items, call.request_id)],
        previous_id=request.previous_response_id,
        background=request.background,
        last_event_number=last_event_number,
    )


def read_back(stored: list[dict[str, Any]]) -> list[InputItem]:
    """Stored items may have ignored fields, or images larger than are allowed now."""
    with unknown_fields_ignored(), images_read(ImageReading(is_stored=True)):
        return [items([item], "stored")[0] for item in stored]
