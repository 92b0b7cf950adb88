"""Calls as models of every format write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from inference.text.tool_calls import FORMATS as FORMATS
from inference.text.tool_calls import json_formats as js
from inference.text.tool_calls.tag_formats import DSML

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
    """Writes these calls as models of that format do."""
    writing = WRITINGS[name]
    texts = [writing.call(*call, index) for index, call in enumerate(calls)]
    return writing.opens + writing.between.join(texts) + writing.closes
