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

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
TEXTS, OBJECT = {"type": "array", "items": TEXT}, {"type": "object"}


def tool(
    name: str,
    properties: dict[str, Any],
    required: Sequence[str] = (),
    *,
    strict: bool = False,
    **more: Any,
) -> ToolDefinition:
    """``more``: of its schema."""
    own = {"type": "object", "properties": properties, "required": list(required)}
    parameters = own | {"additionalProperties": False} | more
    return ToolDefinition(name=name, path=f"tools.{name}", parameters=parameters, strict=strict)


FILE = {"path": TEXT, "content": TEXT, "mode": {"type": ["integer", "null"]}, "tags": TEXTS}
TOOLS = [
    tool("get_weather", {"city": TEXT, "days": NUMBER}, ["city"]),
    tool("bash", {"command": TEXT}, ["command"]),
    tool("create_user", {"name": TEXT, "age": NUMBER}),
    tool("write_file", FILE | {"options": OBJECT}, ["path", "content"]),
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
    opens: str = ""
    closes: str = ""
    between: str = "\n"


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
_QWEN_CODER = ("<function=%n>\n", "<parameter=%k>\n%v\n</parameter>\n", "</function>\n")
_SEED = ("<function=%n>\n", "<parameter=%k>%v</parameter>\n", "</function>\n")
_GLM = ("<tool_call>%n\n", "<arg_key>%k</arg_key>\n<arg_value>%v</arg_value>\n", "</tool_call>")
_GLM_47 = tuple(part.replace("\n", "") for part in _GLM)
_FENCED = f"{js.CALL_BEGIN}function{js.SEPARATOR}%n\n```json\n%a\n```{js.CALL_END}"
_COMMAND_R = _as('{"tool_call_id": "%i", "tool_name": "%n", "parameters": %a}')
_KIMI = "<|tool_call_begin|>functions.%n:%i<|tool_call_argument_begin|>%a<|tool_call_end|>"
_SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_LFM2 = "<|tool_call_start|>[", "]<|tool_call_end|>"


def _in(opens: str, parts: tuple[str, ...], closes: str) -> Write:
    first, argument, last = parts
    return _tagged(opens + first, argument, last + closes)


WRITINGS: dict[str, Writing] = {
    "hermes": Writing(_as('<tool_call>\n{"name": "%n", "arguments": %a}\n</tool_call>')),
    "qwen_coder": Writing(_in("<tool_call>\n", _QWEN_CODER, "</tool_call>")),
    "llama3": Writing(_as('{"name": "%n", "parameters": %a}'), between="; "),
    "llama3_python": Writing(_python(repr), "[", "]", ", "),
    "mistral": Writing(_OBJECT, "[TOOL_CALLS][", "]", ", "),
    "mistral_named": Writing(_as("[TOOL_CALLS]%n[ARGS]%a"), between=""),
    "deepseek": Writing(_as(_FENCED), js.CALLS_BEGIN, js.CALLS_END),
    "deepseek_v31": Writing(
        _as(f"{js.CALL_BEGIN}%n{js.SEPARATOR}%a{js.CALL_END}"), js.CALLS_BEGIN, js.CALLS_END, ""
    ),
    "dsml": Writing(_DSML, f"<{DSML}function_calls>\n", f"\n</{DSML}function_calls>"),
    "dsml_v4": Writing(_DSML, f"<{DSML}tool_calls>\n", f"\n</{DSML}tool_calls>"),
    "function_gemma": Writing(
        _gemma("<start_function_call>", "<end_function_call>", "<escape>"), between=""
    ),
    "gemma_4": Writing(_gemma("<|tool_call>", "<tool_call|>", '<|"|>'), between=""),
    "glm": Writing(_in("", _GLM, "")),
    "glm_47": Writing(_in("", _GLM_47, "")),
    "granite": Writing(_OBJECT, "<|tool_call|>[", "]", ", "),
    "hunyuan": Writing(_OBJECT, "<tool_calls>[", "]</tool_calls>", ", "),
    "nemotron": Writing(_OBJECT, "<TOOLCALL>[", "]</TOOLCALL>", ", "),
    "command_r": Writing(_COMMAND_R, "<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>", ",\n    "),
    "functools": Writing(_OBJECT, "functools[", "]", ", "),
    "harmony": Writing(_as("<|channel|>commentary to=%n <|constrain|>json<|message|>%a")),
    "kimi": Writing(_as(_KIMI), *_SECTION, ""),
    "lfm2": Writing(_python(json.dumps), *_LFM2, ", "),
    "minimax": Writing(_INVOKE, "<minimax:tool_call>\n", "\n</minimax:tool_call>"),
    "plain": Writing(_OBJECT),
    "seed": Writing(_in("<seed:tool_call>\n", _SEED, "</seed:tool_call>")),
}


def written(name: str, *calls: Call) -> str:
    writing = WRITINGS[name]
    texts = [writing.call(*call, index) for index, call in enumerate(calls)]
    return writing.opens + writing.between.join(texts) + writing.closes
