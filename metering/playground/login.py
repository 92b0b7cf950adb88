"""The API for the playground's page, which identifies a person by their login's cookie instead of a
key.

    /playground/v1/… ─▶ Django: host, session, CSRF, account ─▶ Login ─▶ the consumer of /v1/…

A whole Django request without a body identifies each request, so that the protection of forms
holds: a page of another origin has no CSRF token to send. Only the page's endpoints accept it;
elsewhere under ``/v1`` a cookie identifies no caller.
"""

from __future__ import annotations

import asyncio
from typing import Any

from inference.gateway.request.identify import LOGIN, Login
from inference.wire.errors import ApiError, ForbiddenError, InternalError, InvalidApiKeyError

PREFIX = "/playground"
IDENTIFY_PATH = f"{PREFIX}/identify"
FOUND = "helexa.playground"
"""The entry of an ASGI scope: a list to which the view of ``IDENTIFY_PATH`` adds a ``Login``."""
CHAT_PATH, MODELS_PATH = "/v1/chat/completions", "/v1/models"
OF_THE_BODY = frozenset(
    {b"content-length", b"content-type", b"content-encoding", b"transfer-encoding", b"expect"}
)
NO_BODY = {"type": "http.request", "body": b"", "more_body": False}


def path_by_login(path: str) -> str | None:
    """``None``: a login is not accepted there."""
    if not path.startswith(f"{PREFIX}/v1/"):
        return None
    rest = path.removeprefix(PREFIX)
    is_served = rest in (CHAT_PATH, MODELS_PATH) or rest.startswith(f"{MODELS_PATH}/")
    return rest if is_served else None


async def with_login(scope: dict[str, Any], django_app: Any) -> dict[str, Any]:
    """The scope with its ``Login``, which holds the refusal where no user is logged in."""
    return {**scope, LOGIN: await _login(scope, django_app)}


async def _login(scope: dict[str, Any], django_app: Any) -> Login:
    found: list[Login] = []
    asked = {
        **scope,
        "method": "POST",
        "path": IDENTIFY_PATH,
        "raw_path": IDENTIFY_PATH.encode(),
        "headers": [pair for pair in scope["headers"] if pair[0] not in OF_THE_BODY],
        FOUND: found,
    }
    statuses: list[int] = []
    messages = [NO_BODY]

    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.Event().wait()  # no disconnect: Django cancels this with its request
        return messages.pop()

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await django_app(asked, receive, send)
    return found[0] if found else Login(refusal=_refusal(statuses[0]))


def _refusal(status: int) -> ApiError:
    if status == 302:
        return InvalidApiKeyError("You are not logged in any more: reload the page and log in.")
    if 400 <= status < 500:
        return ForbiddenError(
            "origin_not_allowed",
            "This server does not know the request as one of its own pages: reload the page.",
        )
    return InternalError()
