"""Paths under /v1 that do not exist."""

from __future__ import annotations

from inference.gateway.consumers.api_consumer import ApiConsumer
from inference.gateway.server.paths import UNKNOWN_ENDPOINT, unknown_url
from inference.wire.errors import UnknownUrlError


class UnknownUrlConsumer(ApiConsumer):
    """A path under /v1 that does not exist."""

    scope_needed = None
    endpoint = UNKNOWN_ENDPOINT

    def _check_before_body(self) -> None:
        raise UnknownUrlError(unknown_url(self.scope["method"], self.scope["path"]))
