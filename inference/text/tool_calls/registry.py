"""Which tool call format a model speaks: told by its chat template, else by its tokenizer."""

from __future__ import annotations

from inference.text.parts import ToolFormat
from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls.hermes import HermesFormat


def find_tool_format(template: str | None, tokenizer: Tokenizer) -> ToolFormat | None:
    """``template`` is the one that renders chats with tools. ``None``: no format that is known."""
    if template is None:
        return None
    if "<tool_call>" in template and "<arg_key>" not in template:
        return HermesFormat()
    return None
