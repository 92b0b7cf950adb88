"""Tools as text, for endpoints whose API has none: they ride in the system prompt, calls come as
``<tool_call>`` JSON and results go back as ``<tool_response>`` in the user's turn. Pure.

The format is that of NousResearch's Hermes models, which many others were trained on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from helexa_acp.conversation.history import (
    INVALID_CALL,
    AssistantTurn,
    Image,
    Part,
    Text,
    ToolResult,
    Turn,
    UserTurn,
    text_of,
)
from helexa_acp.wire.base import ToolSpec

INSTRUCTIONS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{signatures}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def tools_prompt(tools: Sequence[ToolSpec]) -> str:
    signatures = "\n".join(
        json.dumps(
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            }
        )
        for tool in tools
    )
    return INSTRUCTIONS.format(signatures=signatures)


def as_text(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """The conversation without calls and results of an API: both are written out."""
    written: list[Turn] = []
    for turn in turns:
        match turn:
            case AssistantTurn(calls=calls) if calls:
                written.append(AssistantTurn(text=_called(turn), images=turn.images))
            case ToolResult():
                response: tuple[Part, ...] = (
                    Text(f"<tool_response>\n{text_of(turn.parts)}\n</tool_response>"),
                    *(part for part in turn.parts if isinstance(part, Image)),
                )
                if written and isinstance(before := written[-1], UserTurn):
                    written[-1] = UserTurn(before.parts + response)
                else:
                    written.append(UserTurn(response))
            case _:
                written.append(turn)
    return tuple(written)


def _called(turn: AssistantTurn) -> str:
    calls = [
        f"<tool_call>\n{_call_json(call.name, call.arguments)}\n</tool_call>" for call in turn.calls
    ]
    return "\n".join([turn.text, *calls] if turn.text else calls)


def _call_json(name: str, arguments: dict[str, Any]) -> str:
    if name == INVALID_CALL:
        return str(arguments.get("written", ""))
    return json.dumps({"name": name, "arguments": arguments})
