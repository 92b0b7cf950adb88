"""The exceptions between text and token ids.

TextError
├── TokenizerFilesError      the model's tokenizer files are missing or not understood
├── TooManyTokensError       a text has more tokens than the caller has use for
├── TemplateRenderError      the chat template refused the conversation
├── GrammarRefusedError      the grammar of a request, as its client is told
│   └── SchemaRefusedError     a schema in it
└── SchemaError              a JSON schema is invalid or cannot be enforced
    ├── MalformedSchemaError   it is no JSON schema
    └── UnsupportedSchemaError a tool's schema asks for what its format's grammar cannot express
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.generation import ToolDefinition


class TextError(Exception):
    pass


class TokenizerFilesError(TextError):
    """The message names the file."""


class TooManyTokensError(TextError):
    def __init__(self, num_tokens: int, *, is_least: bool = False) -> None:
        """``is_least``: ``num_tokens`` is a lower bound."""
        self.num_tokens = num_tokens
        self.words = f"at least {num_tokens}" if is_least else str(num_tokens)
        super().__init__(f"{self.words} tokens")


class TemplateRenderError(TextError):
    """``str(error)`` is written for the client, ``param`` the field of its body."""

    def __init__(self, message: str, param: str = "messages") -> None:
        super().__init__(message)
        self.param = param


class GrammarRefusedError(TextError):
    code = "invalid_grammar"

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message if param is None else f"{param}: {message}")
        self.param = param


class SchemaRefusedError(GrammarRefusedError):
    code = "invalid_schema"


class SchemaError(TextError):
    """``steps`` lead from the schema's root to the keyword; ``str(error)`` is for the client."""

    def __init__(self, steps: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.steps = steps

    def path(self, root: str) -> str:
        return path_of(root, self.steps)


class MalformedSchemaError(SchemaError):
    pass


def path_of(root: str, steps: Sequence[str | int]) -> str:
    """For example ``root.properties.x.anyOf[1]``."""
    return root + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


class UnsupportedSchemaError(SchemaError):
    """``param`` is the keyword's path in the client's body."""

    def __init__(self, tool: ToolDefinition, steps: tuple[str | int, ...], message: str) -> None:
        super().__init__(steps, message)
        self.tool = tool
        self.param = self.path(tool.path)
