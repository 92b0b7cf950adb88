"""What a format's grammar cannot express.

SchemaError
└── UnsupportedSchemaError      a tool's schema asks for it
"""

from __future__ import annotations

from inference.protocol.generation import ToolDefinition
from inference.text.errors import SchemaError


class UnsupportedSchemaError(SchemaError):
    """``param`` is where in the client's body the keyword stands."""

    def __init__(self, tool: ToolDefinition, steps: tuple[str | int, ...], message: str) -> None:
        super().__init__(steps, message)
        self.tool = tool
        self.param = self.path(tool.path)
