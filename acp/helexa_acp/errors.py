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
    """The configuration is wrong, or lacks the model that the user named."""


class StoreError(BridgeError):
    """A session's file cannot be used."""


class EndpointError(BridgeError):
    """The endpoint refused or failed. ``status`` is None where it did not answer at all."""

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def _is_refusal_of(self, *words: str) -> bool:
        text = f"{self.code} {self}".lower()
        return self.status in (400, 404, 422, 501) and any(word in text for word in words)

    @property
    def refuses_tools(self) -> bool:
        return self._is_refusal_of("tool", "function call", "template_render_failed")

    @property
    def refuses_thinking(self) -> bool:
        return self._is_refusal_of("thinking")

    @property
    def refuses_images(self) -> bool:
        return self._is_refusal_of("image", "vision", "multimodal")

    @property
    def refuses_content(self) -> bool:
        return self.status in (400, 413, 422)

    @property
    def exceeds_context(self) -> bool:
        return self._is_refusal_of(
            "context_length", "context length", "context window", "too long", "maximum context"
        )


class ToolError(BridgeError):
    """The tool failed. The model reads the reason and continues."""


class McpError(BridgeError):
    """An MCP server did not start, did not answer, or answered with an error."""
