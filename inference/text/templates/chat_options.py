"""What a chat asks of its template: whether to think, and which tools to show. Knows no renderer: a
process without one can ask as well."""

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.generation import ChatInput, ToolDefinition

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""What templates call the switch: Qwen and most others; DeepSeek and Granite."""


def wants_thinking(chat: ChatInput) -> bool | None:
    """The template's ``enable_thinking``: the client's template_kwargs, else its explicit
    ``thinking``, else false when it will not see any. ``None``: unset, the template decides."""
    for name in THINKING_SWITCHES:
        if name in chat.template_kwargs:
            return bool(chat.template_kwargs[name])
    if chat.thinking is None and not chat.shows_reasoning:
        return False
    return chat.thinking


def rendered_tools(chat: ChatInput) -> Sequence[ToolDefinition]:
    """The tools that the prompt describes: none when the model may not call any."""
    return () if chat.tool_choice.mode == "none" else chat.tools
