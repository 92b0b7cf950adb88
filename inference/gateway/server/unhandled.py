"""Requests that no consumer gets to see: refused by their head, their address or their origin, or
left before they were whole. They are recorded as every other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from inference.gateway.gateway import Gateway
from inference.gateway.request.call import Call
from inference.gateway.server.paths import api_path_of, endpoint_of, unknown_url
from inference.request_ids import new_request_id
from inference.wire.dialect import REQUEST_ID_HEADERS
from inference.wire.errors import ApiError, UnknownUrlError

REFUSED_HANDSHAKE = 403
"""The status that ASGI gives a socket which is closed before it was accepted."""

REQUEST_ID = REQUEST_ID_HEADERS[0]
Headers = Sequence[tuple[bytes, bytes]]
Application = Callable[[Any, Any, Any], Awaitable[None]]


class UnhandledRequests:
    """Records those of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def refused(
        self,
        request_id: str,
        target: bytes,
        error: ApiError,
        status: int,
        headers: Headers = (),
    ) -> None:
        """``target``: its path, with or without the query. ``status``: what its client got."""
        call = self._open_call(request_id, target, headers)
        call.fail(error)
        call.status = status
        call.close()

    def left(self, target: bytes) -> None:
        """Records a request whose client left before the body was whole. Only paths of the API are
        recorded."""
        if api_path_of(target) is not None:
            self._open_call(new_request_id(), target, ()).close()

    def refused_at(self, scope: Any, error: ApiError, status: int) -> str:
        """Records a refusal of a request whose ASGI scope there is. Returns its new id."""
        request_id = new_request_id()
        self._record(request_id, scope, error, status)
        return request_id

    async def no_socket(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuses the handshake of a WebSocket at a path that has none."""
        await receive()
        error = UnknownUrlError(unknown_url("WebSocket", scope["path"]))
        self.refused_at(scope, error, REFUSED_HANDSHAKE)
        await send({"type": "websocket.close"})

    def recorded_where_unknown(self, application: Application) -> Application:
        """The ASGI ``application``, Django: what it answers with a request's id is recorded, an
        address that is neither a page's nor an API's."""

        async def recorded(scope: Any, receive: Any, send: Any) -> None:
            async def watched(message: Any) -> None:
                if request_id := dict(message.get("headers", ())).get(REQUEST_ID):
                    error = UnknownUrlError(unknown_url(scope["method"], scope["path"]))
                    self._record(request_id.decode(), scope, error, message["status"])
                await send(message)

            await application(scope, receive, watched)

        return recorded

    def _record(self, request_id: str, scope: Any, error: ApiError, status: int) -> None:
        target = scope["path"].encode("latin-1", "replace")
        self.refused(request_id, target, error, status, scope["headers"])

    def _open_call(self, request_id: str, target: bytes, headers: Headers) -> Call:
        self._gateway.ensure_started()
        return self._gateway.open_call(
            request_id=request_id, endpoint=endpoint_of(target), headers=headers
        )
