"""Calls as each format writes them, and a second reading of them: strict, and of whole texts.

The second reading is an oracle for answers that were changed: it is written with regular
expressions and ``json`` alone, and takes nothing from the parsers.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inference.text.tool_calls import json_formats as ds
from tests.inference.text.tool_calls.calls import tool

TOOLS = [
    tool(
        "run",
        {
            "command": {"type": "string"},
            "cwd": {"type": "string"},
            "timeout": {"type": "integer"},
            "env": {"type": "object"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "login": {"type": "boolean"},
        },
        required=["command"],
    ),
    tool("note", {"name": {"type": "string"}, "id": {"type": "integer"}}),
]
NAMES = {one.name for one in TOOLS}
ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    ("run", {"command": "rm -rf build", "cwd": "/srv"}),
    ("run", {"command": "echo \"a\\b\" > 'x'\n# {1: [2]}", "timeout": 30, "login": True}),
    ("run", {"command": "make", "env": {"A": "1", "B": {"c": [1, 2.5]}}, "tags": ["x", "y, z"]}),
    ("note", {"name": "run", "id": 7}),
]
Arguments = dict[str, Any]
Calls = list[tuple[str, Arguments]]
_BAD_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)


@dataclass(frozen=True)
class Writing:
    write: Callable[[str, Arguments], str]
    read: Callable[[str], Calls]
    """Raises ``ValueError`` for what the format does not write."""


def lenient_json(text: str) -> Any:
    """JSON, but for what a character in a string plainly stands for: a line break, a backslash that
    escapes nothing."""

    return json.loads(plain_escapes(text), strict=False)


def plain_escapes(text: str) -> str:
    def kept(escape: re.Match[str]) -> str:
        after = escape.group(1)
        if after == "'":
            return after
        return escape.group() if len(after) > 1 or after in '"\\/bfnrt' else f"\\\\{after}"

    return _BAD_ESCAPE.sub(kept, text)


def _objects(text: str) -> Calls:
    """Calls as JSON objects, or lists of them."""
    calls: Calls = []
    decoder = json.JSONDecoder(strict=False)
    text, position = plain_escapes(text), 0
    while position < len(text):
        if text[position] in " \t\r\n,;":
            position += 1
            continue
        value, position = decoder.raw_decode(text, position)
        calls += [_call(one) for one in (value if isinstance(value, list) else [value])]
    return calls


def _call(value: Any) -> tuple[str, Arguments]:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("no call")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = lenient_json(arguments or "{}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError("no arguments")
    return value["name"], arguments


def _marked(pattern: str, read: Callable[[str], Calls]) -> Callable[[str], Calls]:
    whole = re.compile(pattern, re.DOTALL)

    def marked(text: str) -> Calls:
        found = whole.fullmatch(text.strip())
        if found is None:
            raise ValueError("no block")
        return read(found.group(1))

    return marked


def _named(pattern: str) -> Callable[[str], Calls]:
    whole = re.compile(pattern, re.DOTALL)

    def named(text: str) -> Calls:
        found = whole.fullmatch(text.strip())
        if found is None:
            raise ValueError("no block")
        arguments = lenient_json(found.group(2))
        if not isinstance(arguments, dict):
            raise ValueError("no arguments")
        return [(found.group(1), arguments)]

    return named


def _tagged(head: str, argument: str, tail: str) -> Callable[[str], Calls]:
    """``head`` has the name, ``argument`` key, value and perhaps whether it is text."""
    whole = re.compile(f"{head}((?:{argument})*){tail}", re.DOTALL)
    one = re.compile(argument, re.DOTALL)

    def tagged(text: str) -> Calls:
        found = whole.fullmatch(text.strip())
        if found is None:
            raise ValueError("no block")
        arguments: Arguments = {}
        for match in one.finditer(found.group(2)):
            key = match["key"].strip()
            arguments[key] = _value(key, match["value"])
        return [(found.group(1).strip(), arguments)]

    return tagged


def _value(key: str, text: str) -> Any:
    if key not in ("timeout", "env", "tags", "login", "id"):
        return text
    try:
        return lenient_json(text)
    except ValueError:
        return text


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _json_call(key: str) -> Callable[[str, Arguments], str]:
    return lambda name, arguments: json.dumps({"name": name, key: arguments})


def _qwen(name: str, arguments: Arguments) -> str:
    inner = "".join(
        f"<parameter={key}>\n{_plain(value)}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def _glm(name: str, arguments: Arguments) -> str:
    inner = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{_plain(value)}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{inner}</tool_call>"


D = "｜DSML｜"  # noqa: RUF001


def _dsml(name: str, arguments: Arguments) -> str:
    inner = "".join(
        f'<{D}parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
        f"{_plain(value)}</{D}parameter>\n"
        for key, value in arguments.items()
    )
    invoke = f'<{D}invoke name="{name}">\n{inner}</{D}invoke>'
    return f"<{D}function_calls>\n{invoke}\n</{D}function_calls>"


def _seed(name: str, arguments: Arguments) -> str:
    inner = "".join(
        f"<parameter={key}>{_plain(value)}</parameter>\n" for key, value in arguments.items()
    )
    return f"<seed:tool_call>\n<function={name}>\n{inner}</function>\n</seed:tool_call>"


def _minimax(name: str, arguments: Arguments) -> str:
    inner = "".join(
        f'<parameter name="{key}">{_plain(value)}</parameter>\n' for key, value in arguments.items()
    )
    return f'<minimax:tool_call>\n<invoke name="{name}">\n{inner}</invoke>\n</minimax:tool_call>'


def _e(text: str) -> str:
    return re.escape(text)


def _gemma(quote: str) -> Callable[[Any], str]:
    def written(value: Any) -> str:
        if isinstance(value, str):
            return f"{quote}{value}{quote}"
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}:{written(one)}" for key, one in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(written, value)) + "]"
        return json.dumps(value)

    return written


TEXTS = ("command", "cwd", "name")
_WORD = r"""[\w./~+$@-][^<>"'`|:{}()\[\]\\#=\x00,]*"""


def _quoted_word(found: re.Match[str]) -> str:
    """A bare word where the tool takes text alone."""
    key, word = found.groups()
    try:
        lenient_json(word)
    except ValueError:
        return f"{key}{json.dumps(word.strip())}"
    return found.group()


def _gemma_arguments(quote: str) -> Callable[[str], Arguments]:
    """Reads arguments by rewriting them to JSON: texts first, then bare keys and words."""
    text = re.compile(f'{_e(quote)}(.*?){_e(quote)}|("(?:[^"\\\\]|\\\\.)*")', re.DOTALL)

    def read(written: str) -> Arguments:
        texts: list[str] = []

        def hidden(found: re.Match[str]) -> str:
            is_marked = found.group(2) is None
            texts.append(found.group(1) if is_marked else lenient_json(found.group(2)))
            return f"\x00{len(texts) - 1}\x00"

        bare = text.sub(hidden, written)
        keyed = re.sub(r"([{,]\s*)([^\s\x00:{},\[\]\"][^\x00:{},\[\]\"]*?)\s*:", r'\1"\2":', bare)
        worded = re.sub(rf'("(?:{"|".join(TEXTS)})":)({_WORD})', _quoted_word, keyed)
        shown = re.sub(
            r"\x00(\d+)\x00", lambda found: json.dumps(texts[int(found.group(1))]), worded
        )
        arguments = lenient_json(shown)
        if not isinstance(arguments, dict):
            raise ValueError("no arguments")
        return arguments

    return read


def _gemma_writing(opens: str, closes: str, quote: str) -> Writing:
    whole = re.compile(
        f"{_e(opens)}\\s*call:\\s*([^{{}}\\s]+?)\\s*(\\{{.*\\}})\\s*(?:{_e(closes)})?",
        re.DOTALL,
    )
    written, arguments_of = _gemma(quote), _gemma_arguments(quote)

    def read(text: str) -> Calls:
        found = whole.fullmatch(text.strip())
        if found is None:
            raise ValueError("no block")
        return [(found.group(1), arguments_of(found.group(2)))]

    return Writing(lambda name, one: f"{opens}call:{name}{written(one)}{closes}", read)


def _pythonic(text: str) -> Calls:
    try:
        body = _JsonNames().visit(ast.parse(text.strip(), mode="eval")).body
        if not isinstance(body, ast.List):
            raise ValueError("no list")
        calls = [_python_call(one) for one in body.elts]
    except (SyntaxError, TypeError) as error:
        raise ValueError("no Python") from error
    return calls


class _JsonNames(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        values = {"null": None, "true": True, "false": False}
        return ast.Constant(values[node.id]) if node.id in values else node


def _python_call(node: ast.expr) -> tuple[str, Arguments]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise ValueError("no call")
    return node.func.id, {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}


def _python_call_text(name: str, arguments: Arguments) -> str:
    return f"[{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]"


def _command_r(name: str, arguments: Arguments) -> str:
    return json.dumps({"tool_call_id": "0", "tool_name": name, "parameters": arguments})


def _command_r_objects(text: str) -> Calls:
    return _objects(text.replace('"tool_name"', '"name"'))


def _around(before: str, inner: Callable[[str, Arguments], str], after: str) -> Any:
    return lambda name, arguments: f"{before}{inner(name, arguments)}{after}"


def _head(before: str, after: str, end: str) -> Any:
    return lambda name, arguments: f"{before}{name}{after}{json.dumps(arguments)}{end}"


DS_BEGIN, DS_END = ds.CALLS_BEGIN + ds.CALL_BEGIN, ds.CALL_END + ds.CALLS_END
DS_OPENS = f"(?:{ds.CALLS_BEGIN})?{ds.CALL_BEGIN}"
CALL, PARAMETERS = _json_call("arguments"), _json_call("parameters")
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
    ":0<|tool_call_argument_begin|>",
)
KIMI_END = "<|tool_call_end|><|tool_calls_section_end|>"
HARMONY = ("<|channel|>commentary to=", " <|constrain|>json<|message|>")

WRITINGS: dict[str, Writing] = {
    "hermes": Writing(
        _around("<tool_call>\n", CALL, "\n</tool_call>"),
        _marked("<tool_call>(.*?)(?:</tool_call>)?", _objects),
    ),
    "llama3": Writing(PARAMETERS, _objects),
    "llama3_python": Writing(_python_call_text, _pythonic),
    "mistral": Writing(
        _around("[TOOL_CALLS][", CALL, "]"), _marked(r"\[TOOL_CALLS\](.*)", _objects)
    ),
    "mistral_named": Writing(
        _head("[TOOL_CALLS]", "[ARGS]", ""),
        _named(r"\[TOOL_CALLS\]\s*([^\s{]+?)\s*(?:\[ARGS\])?\s*(\{.*)"),
    ),
    "granite": Writing(
        _around("<|tool_call|>[", CALL, "]"), _marked(r"<\|tool_call\|>(.*)", _objects)
    ),
    "hunyuan": Writing(
        _around("<tool_calls>[", CALL, "]</tool_calls>"),
        _marked("<tool_calls>(.*?)(?:</tool_calls>)?", _objects),
    ),
    "command_r": Writing(
        _around("<|START_ACTION|>[", _command_r, "]<|END_ACTION|>"),
        _marked(r"<\|START_ACTION\|>(.*?)(?:<\|END_ACTION\|>)?", _command_r_objects),
    ),
    "plain": Writing(CALL, _objects),
    "deepseek": Writing(
        _head(f"{DS_BEGIN}function{ds.SEPARATOR}", "\n```json\n", f"\n```{DS_END}"),
        _named(
            f"{DS_OPENS}function{ds.SEPARATOR}\\s*([^\\s`]+?)\\s*`*(?:json)?\\s*"
            f"(\\{{.*\\}})[\\s`]*(?:<.*)?"
        ),
    ),
    "deepseek_v31": Writing(
        _head(DS_BEGIN, ds.SEPARATOR, DS_END),
        _named(f"{DS_OPENS}(\\S+?){ds.SEPARATOR}(\\{{.*\\}})\\s*(?:<.*)?"),
    ),
    "kimi": Writing(
        _head(*KIMI, KIMI_END),
        _named(f"{_e(KIMI[0])}(\\S+?){_e(KIMI[1])}(\\{{.*\\}})\\s*(?:<\\|tool_call.*)?"),
    ),
    "harmony": Writing(_head(*HARMONY, ""), _named(f"{_e(HARMONY[0])}(\\S+){_e(HARMONY[1])}(.*)")),
    "qwen_coder": Writing(
        _qwen,
        _tagged(
            r"(?:<tool_call>\s*)?<function=([^<>\n]+)>\s*",
            r"<parameter=(?P<key>[^<>\n]+)>\n?(?P<value>(?:(?!<parameter=[^<>\n]+>|\n?</parameter>).)*)"
            r"\n?</parameter>\s*",
            r"(?:</function>)?\s*(?:</tool_call>)?",
        ),
    ),
    "glm": Writing(
        _glm,
        _tagged(
            r"<tool_call>\s*([^<>\n]+)\s*",
            r"<arg_key>(?P<key>[^<>\n]+)</arg_key>\s*<arg_value>"
            r"(?P<value>(?:(?!</?arg_value>|</?arg_key>).)*)</arg_value>\s*",
            r"</tool_call>",
        ),
    ),
    "dsml": Writing(
        _dsml,
        _tagged(
            f'(?:<{D}function_calls>\\s*)?<{D}invoke name="([^<>"\n]+)">\\s*',
            f'<{D}parameter name="(?P<key>[^<>"\n]+)"(?P<kind>\\s*string="(?:true|false)"|\\s*)>'
            f"(?P<value>(?:(?!{D}).)*)</{D}parameter>\\s*",
            f"</{D}invoke>\\s*(?:</{D}function_calls>)?",
        ),
    ),
    "lfm2": Writing(
        _around("<|tool_call_start|>", _python_call_text, "<|tool_call_end|>"),
        _marked(r"<\|tool_call_start\|>(.*?)(?:<\|tool_call_end\|>)?", _pythonic),
    ),
    "seed": Writing(
        _seed,
        _tagged(
            r"(?:<seed:tool_call>\s*)?<function=([^<>\n]+)>\s*",
            r"<parameter=(?P<key>[^<>\n]+)>(?P<value>(?:(?!<parameter=[^<>\n]+>|</parameter>).)*)"
            r"</parameter>\s*",
            r"(?:</function>)?\s*(?:</seed:tool_call>)?",
        ),
    ),
    "minimax": Writing(
        _minimax,
        _tagged(
            r"(?:<minimax:tool_call>\s*)?<invoke name=\"([^<>\"\n]+)\">\s*",
            r"<parameter name=\"(?P<key>[^<>\"\n]+)\">"
            r"(?P<value>(?:(?!\n<parameter name=|<parameter name=\"[^<>\"\n]+\">|</parameter>).)*)"
            r"</parameter>\s*",
            r"</invoke>\s*(?:</minimax:tool_call>)?",
        ),
    ),
    "function_gemma": _gemma_writing("<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma_4": _gemma_writing("<|tool_call>", "<tool_call|>", '<|"|>'),
}
