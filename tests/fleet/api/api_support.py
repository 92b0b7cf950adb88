"""Calls of the fleet's REST API, with a key of some scopes or as a user who is logged in."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from django.test import Client

from metering import services
from metering.audit import COMMAND


@dataclass(frozen=True)
class Api:
    """``api.get("neurons", 200)`` is the JSON of the answer, which must have that status."""

    client: Client
    key: str | None = None

    def get(self, path: str, status: int = 200) -> Any:
        return self._ask("GET", path, None, status)

    def post(self, path: str, body: Any = None, status: int = 202) -> Any:
        return self._ask("POST", path, {} if body is None else body, status)

    def patch(self, path: str, body: Any, status: int = 200) -> Any:
        return self._ask("PATCH", path, body, status)

    def delete(self, path: str, status: int = 204) -> Any:
        return self._ask("DELETE", path, None, status)

    def _ask(self, method: str, path: str, body: Any, status: int) -> Any:
        headers = {} if self.key is None else {"authorization": f"Bearer {self.key}"}
        response = self.client.generic(
            method,
            f"/api/{path}",
            "" if body is None else json.dumps(body),
            content_type="application/json",
            headers=headers,
        )
        assert response.status_code == status, response.content
        return json.loads(response.content) if response.content else None


def key_api(*scopes: str) -> Api:
    account = services.account_create(
        actor=COMMAND, name=f"team-{'-'.join(scopes)}".replace(":", "-")
    )
    made = services.key_create(actor=COMMAND, account=account, scopes=list(scopes))
    return Api(Client(), made.key)


def need_keys(settings: Any) -> None:
    """Makes every request need a key, as on a server that listens on more than loopback."""
    settings.CONFIG = replace(
        settings.CONFIG, listen_host="0.0.0.0", api_key=None, allowed_hosts=("testserver",)
    )
    settings.ALLOWED_HOSTS = ["testserver"]
