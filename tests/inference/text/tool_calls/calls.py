"""Tools that tests offer, calls as models of every format write them, and a parser's parts in a
shape that is easy to compare."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from inference.protocol.generation import ToolDefinition
from inference.text.tool_calls import FORMATS as FORMATS
from inference.text.tool_calls import json_formats as js
from inference.text.tool_calls.call_parser import (
    CallArguments,
    CallFormat,
    CallStarted,
    Part,
    TextPart,
)
from inference.text.tool_calls.tag_formats import DSML


def tool(
    name: str,
    properties: dict[str, Any],
    *,
    required: Sequence[str] = (),
    strict: bool = False,
    defs: dict[str, Any] | None = None,
) -> ToolDefinition:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **({} if defs is None else {"$defs": defs}),
    }
    return ToolDefinition(name=name, path=f"tools.{name}", parameters=parameters, strict=strict)


TOOLS = [
    tool(
        "get_weather",
        {"city": {"type": "string"}, "days": {"type": "integer"}},
        required=["city"],
    ),
    tool("bash", {"command": {"type": "string"}}, required=["command"]),
    tool("create_user", {"name": {"type": "string"}, "age": {"type": "integer"}}),
    tool(
        "write_file",
        {
            "path": {"type": "string"},
            "content": {"type": "string"},
            "mode": {"type": ["integer", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "options": {"type": "object"},
        },
        required=["path", "content"],
    ),
    ToolDefinition(name="now", path="tools.now"),
]

ReadCall = tuple[str, str]
Merged = list[str | ReadCall]
"""Texts, and calls as name and arguments, in order; neighbours of a kind are one."""


def parts_of(
    tool_format: CallFormat, chunks: Iterable[str], tools: Sequence[ToolDefinition] = TOOLS
) -> list[Part]:
    parser = tool_format.parser(tools)
    parts = [part for chunk in chunks for part in parser.feed(chunk)]
    return [*parts, *parser.flush()]


def merged(parts: Iterable[Part]) -> Merged:
    """Fails when arguments come outside of a call, or do not make up one JSON object."""
    merged: Merged = []
    is_in_call = False
    for part in parts:
        match part:
            case TextPart(text=text):
                assert text
                is_in_call = False
                if merged and isinstance(merged[-1], str):
                    merged[-1] += text
                else:
                    merged.append(text)
            case CallStarted(name=name):
                is_in_call = True
                merged.append((name, ""))
            case CallArguments(fragment=fragment):
                assert fragment
                assert is_in_call
                name, arguments = merged[-1]
                merged[-1] = (name, arguments + fragment)
    for one in merged:
        if not isinstance(one, str):
            assert isinstance(json.loads(one[1]), dict), one
    return merged


def read(tool_format: CallFormat, text: str, tools: Sequence[ToolDefinition] = TOOLS) -> Merged:
    return merged(parts_of(tool_format, [text], tools))


Arguments = dict[str, Any]
Call = tuple[str, Arguments]
Write = Callable[[str, Arguments, int], str]


class Writing(NamedTuple):
    """``call`` writes a call from its name, arguments and place among several."""

    call: Write
    between: str = ""
    opens: str = ""
    closes: str = ""


def _as(text: str) -> Write:
    """``text`` has ``%n`` for the name, ``%a`` for arguments in JSON and ``%i`` for the place."""
    return lambda name, arguments, index: (
        text.replace("%n", name).replace("%i", str(index)).replace("%a", json.dumps(arguments))
    )


def _tagged(opens: str, argument: str, closes: str) -> Write:
    """``argument`` has ``%k`` for key, ``%v`` for value and ``%t`` for whether it is text."""

    def write(name: str, arguments: Arguments, _: int) -> str:
        inner = "".join(
            argument.replace("%k", key)
            .replace("%t", str(isinstance(value, str)).lower())
            .replace("%v", value if isinstance(value, str) else json.dumps(value))
            for key, value in arguments.items()
        )
        return opens.replace("%n", name) + inner + closes

    return write


def _gemma(opens: str, closes: str, quote: str) -> Write:
    def written(value: Any) -> str:
        match value:
            case str():
                return f"{quote}{value}{quote}"
            case dict():
                return "{" + ",".join(f"{key}:{written(one)}" for key, one in value.items()) + "}"
            case list():
                return "[" + ",".join(map(written, value)) + "]"
        return json.dumps(value)

    return lambda name, arguments, _: f"{opens}call:{name}{written(arguments)}{closes}"


def _python(dumps: Callable[[Any], str]) -> Write:
    return lambda name, arguments, _: (
        f"{name}({', '.join(f'{key}={dumps(value)}' for key, value in arguments.items())})"
    )


_OBJECT = _as('{"name": "%n", "arguments": %a}')
_DSML = _tagged(
    f'<{DSML}invoke name="%n">\n',
    f'<{DSML}parameter name="%k" string="%t">%v</{DSML}parameter>\n',
    f"</{DSML}invoke>",
)
_INVOKE = _tagged('<invoke name="%n">\n', '<parameter name="%k">%v</parameter>\n', "</invoke>")
WRITINGS: dict[str, Writing] = {
    "hermes": Writing(
        _as('<tool_call>\n{"name": "%n", "arguments": %a}\n</tool_call>'), between="\n"
    ),
    "qwen_coder": Writing(
        _tagged(
            "<tool_call>\n<function=%n>\n",
            "<parameter=%k>\n%v\n</parameter>\n",
            "</function>\n</tool_call>",
        ),
        between="\n",
    ),
    "llama3": Writing(_as('{"name": "%n", "parameters": %a}'), between="; "),
    "llama3_python": Writing(_python(repr), between=", ", opens="[", closes="]"),
    "mistral": Writing(_OBJECT, between=", ", opens="[TOOL_CALLS][", closes="]"),
    "mistral_named": Writing(_as("[TOOL_CALLS]%n[ARGS]%a")),
    "deepseek": Writing(
        _as(f"{js.CALL_BEGIN}function{js.SEPARATOR}%n\n```json\n%a\n```{js.CALL_END}"),
        between="\n",
        opens=js.CALLS_BEGIN,
        closes=js.CALLS_END,
    ),
    "deepseek_v31": Writing(
        _as(f"{js.CALL_BEGIN}%n{js.SEPARATOR}%a{js.CALL_END}"),
        opens=js.CALLS_BEGIN,
        closes=js.CALLS_END,
    ),
    "dsml": Writing(
        _DSML, between="\n", opens=f"<{DSML}function_calls>\n", closes=f"\n</{DSML}function_calls>"
    ),
    "dsml_v4": Writing(
        _DSML, between="\n", opens=f"<{DSML}tool_calls>\n", closes=f"\n</{DSML}tool_calls>"
    ),
    "function_gemma": Writing(_gemma("<start_function_call>", "<end_function_call>", "<escape>")),
    "gemma_4": Writing(_gemma("<|tool_call>", "<tool_call|>", '<|"|>')),
    "glm": Writing(
        _tagged(
            "<tool_call>%n\n",
            "<arg_key>%k</arg_key>\n<arg_value>%v</arg_value>\n",
            "</tool_call>",
        ),
        between="\n",
    ),
    "glm_47": Writing(
        _tagged("<tool_call>%n", "<arg_key>%k</arg_key><arg_value>%v</arg_value>", "</tool_call>"),
        between="\n",
    ),
    "granite": Writing(_OBJECT, between=", ", opens="<|tool_call|>[", closes="]"),
    "hunyuan": Writing(_OBJECT, between=", ", opens="<tool_calls>[", closes="]</tool_calls>"),
    "nemotron": Writing(_OBJECT, between=", ", opens="<TOOLCALL>[", closes="]</TOOLCALL>"),
    "command_r": Writing(
        _as('{"tool_call_id": "%i", "tool_name": "%n", "parameters": %a}'),
        between=",\n    ",
        opens="<|START_ACTION|>[\n    ",
        closes="\n]<|END_ACTION|>",
    ),
    "functools": Writing(_OBJECT, between=", ", opens="functools[", closes="]"),
    "harmony": Writing(_as("<|channel|>commentary to=%n <|constrain|>json<|message|>%a")),
    "kimi": Writing(
        _as("<|tool_call_begin|>functions.%n:%i<|tool_call_argument_begin|>%a<|tool_call_end|>"),
        opens="<|tool_calls_section_begin|>",
        closes="<|tool_calls_section_end|>",
    ),
    "lfm2": Writing(
        _python(json.dumps), between=", ", opens="<|tool_call_start|>[", closes="]<|tool_call_end|>"
    ),
    "minimax": Writing(
        _INVOKE, between="\n", opens="<minimax:tool_call>\n", closes="\n</minimax:tool_call>"
    ),
    "plain": Writing(_OBJECT, between="\n"),
    "seed": Writing(
        _tagged(
            "<seed:tool_call>\n<function=%n>\n",
            "<parameter=%k>%v</parameter>\n",
            "</function>\n</seed:tool_call>",
        ),
        between="\n",
    ),
}


def written(name: str, *calls: Call) -> str:
    writing = WRITINGS[name]
    texts = [writing.call(*call, index) for index, call in enumerate(calls)]
    return writing.opens + writing.between.join(texts) + writing.closes
