"""The bridge's exceptions.

BridgeError
├── ConfigError        the configuration, or a model's name in it; ends the start or the request
├── StoreError         a session's file: missing, unreadable, or held by another process
├── EndpointError      the endpoint refused, failed or could not be reached
├── ToolError          a tool's failure, sent to the model as "ERROR: ..."
└── McpError           an MCP server's failure
"""

from __future__ import annotations


class BridgeError(Exception):
    """``str()`` is a sentence for the person at the editor."""


class ConfigError(BridgeError):
    pass


class StoreError(BridgeError):
    pass


class ToolError(BridgeError):
    pass


class McpError(BridgeError):
    pass


class EndpointError(BridgeError):
    """Its fields are sent to the editor. ``status`` ``None``: the endpoint did not answer."""

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def refuses(self, *words: str) -> bool:
        text = f"{self.code} {self}".lower()
        return self.status in (400, 404, 422, 501) and any(word in text for word in words)
