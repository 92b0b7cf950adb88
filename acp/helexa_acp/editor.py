"""The editor of one session: updates to it, requests to it, and its capabilities."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

from acp import RequestError
from acp.interfaces import Client
from acp.schema import ClientCapabilities, PermissionOption, ToolCallUpdate

from helexa_acp.errors import ToolError

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Editor:
    client: Client
    capabilities: ClientCapabilities
    session_id: str

    async def update(self, update: Any) -> None:
        await self.client.session_update(session_id=self.session_id, update=update)

    async def ask(self, call: ToolCallUpdate, options: list[PermissionOption]) -> str | None:
        """A client that cannot ask has refused."""
        try:
            response = await self.client.request_permission(
                session_id=self.session_id, tool_call=call, options=options
            )
        except (RequestError, ValueError):
            return None
        return getattr(response.outcome, "option_id", None)


async def expect(answer: Awaitable[Answer], otherwise: str) -> Answer:
    """A refusal or an invalid answer is a ToolError that begins with ``otherwise``."""
    try:
        return await answer
    except (RequestError, ValueError) as error:
        raise ToolError(f"{otherwise}: {error}") from None
