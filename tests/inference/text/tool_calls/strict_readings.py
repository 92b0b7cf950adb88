"""A second reading of calls, strict and of whole texts: an oracle for answers that were changed.

It is written with regular expressions and ``json`` alone, and takes nothing from the parsers.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Any

from inference.text.tool_calls import json_formats as ds
from inference.text.tool_calls.tag_formats import DSML
from tests.inference.text.tool_calls.calls import tool
from tests.inference.text.tool_calls.formats import Arguments, Call

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
CALLS: list[Call] = [
    ("run", {"command": "rm -rf build", "cwd": "/srv"}),
    ("run", {"command": "echo \"a\\b\" > 'x'\n# {1: [2]}", "timeout": 30, "login": True}),
    ("run", {"command": "make", "env": {"A": "1", "B": {"c": [1, 2.5]}}, "tags": ["x", "y, z"]}),
    ("note", {"name": "run", "id": 7}),
]
Calls = list[Call]
Read = Callable[[str], Calls]
"""Raises ``ValueError`` for what the format does not write."""
_BAD_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)


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


def _inner(pattern: str, text: str) -> re.Match[str]:
    found = re.compile(pattern, re.DOTALL).fullmatch(text.strip())
    if found is None:
        raise ValueError("no block")
    return found


def _object(value: Any) -> Arguments:
    if not isinstance(value, dict):
        raise ValueError("no arguments")
    return value


def _marked(pattern: str, read: Read = _objects) -> Read:
    return lambda text: read(_inner(pattern, text).group(1))


def _named(pattern: str) -> Read:
    def named(text: str) -> Calls:
        name, arguments = _inner(pattern, text).groups()
        return [(name, _object(lenient_json(arguments)))]

    return named


def _tagged(head: str, argument: str, tail: str) -> Read:
    """``head`` has the name, ``argument`` key, value and perhaps whether it is text."""

    def tagged(text: str) -> Calls:
        name, inner = _inner(f"{head}((?:{argument})*){tail}", text).group(1, 2)
        found = re.finditer(argument, inner, re.DOTALL)
        keyed = [(one["key"].strip(), one["value"]) for one in found]
        return [(name.strip(), {key: _value(key, value) for key, value in keyed})]

    return tagged


def _value(key: str, text: str) -> Any:
    if key not in ("timeout", "env", "tags", "login", "id"):
        return text
    try:
        return lenient_json(text)
    except ValueError:
        return text


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
    text = re.compile(
        f'{re.escape(quote)}(.*?){re.escape(quote)}|("(?:[^"\\\\]|\\\\.)*")', re.DOTALL
    )

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
        return _object(lenient_json(shown))

    return read


def _gemma(opens: str, closes: str, quote: str) -> Read:
    pattern = f"{opens}\\s*call:\\s*([^{{}}\\s]+?)\\s*(\\{{.*\\}})\\s*(?:{closes})?"
    arguments_of = _gemma_arguments(quote)

    def read(text: str) -> Calls:
        name, arguments = _inner(pattern, text).groups()
        return [(name, arguments_of(arguments))]

    return read


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


_DEEPSEEK = f"(?:{ds.CALLS_BEGIN})?{ds.CALL_BEGIN}"
READINGS: dict[str, Read] = {
    "hermes": _marked("<tool_call>(.*?)(?:</tool_call>)?"),
    "llama3": _objects,
    "llama3_python": _pythonic,
    "mistral": _marked(r"\[TOOL_CALLS\](.*)"),
    "mistral_named": _named(r"\[TOOL_CALLS\]\s*([^\s{]+?)\s*(?:\[ARGS\])?\s*(\{.*)"),
    "granite": _marked(r"<\|tool_call\|>(.*)"),
    "hunyuan": _marked("<tool_calls>(.*?)(?:</tool_calls>)?"),
    "command_r": _marked(
        r"<\|START_ACTION\|>(.*?)(?:<\|END_ACTION\|>)?",
        lambda text: _objects(text.replace('"tool_name"', '"name"')),
    ),
    "plain": _objects,
    "deepseek": _named(
        f"{_DEEPSEEK}function{ds.SEPARATOR}\\s*([^\\s`]+?)\\s*`*(?:json)?\\s*"
        f"(\\{{.*\\}})[\\s`]*(?:<.*)?"
    ),
    "deepseek_v31": _named(f"{_DEEPSEEK}(\\S+?){ds.SEPARATOR}(\\{{.*\\}})\\s*(?:<.*)?"),
    "kimi": _named(
        r"<\|tool_calls_section_begin\|><\|tool_call_begin\|>functions\.(\S+?):0"
        r"<\|tool_call_argument_begin\|>(\{.*\})\s*(?:<\|tool_call.*)?"
    ),
    "harmony": _named(r"<\|channel\|>commentary to=(\S+) <\|constrain\|>json<\|message\|>(.*)"),
    "qwen_coder": _tagged(
        r"(?:<tool_call>\s*)?<function=([^<>\n]+)>\s*",
        r"<parameter=(?P<key>[^<>\n]+)>\n?(?P<value>(?:(?!<parameter=[^<>\n]+>|\n?</parameter>).)*)"
        r"\n?</parameter>\s*",
        r"(?:</function>)?\s*(?:</tool_call>)?",
    ),
    "glm": _tagged(
        r"<tool_call>\s*([^<>\n]+)\s*",
        r"<arg_key>(?P<key>[^<>\n]+)</arg_key>\s*<arg_value>"
        r"(?P<value>(?:(?!</?arg_value>|</?arg_key>).)*)</arg_value>\s*",
        r"</tool_call>",
    ),
    "dsml": _tagged(
        f'(?:<{DSML}function_calls>\\s*)?<{DSML}invoke name="([^<>"\n]+)">\\s*',
        f'<{DSML}parameter name="(?P<key>[^<>"\n]+)"(?P<kind>\\s*string="(?:true|false)"|\\s*)>'
        f"(?P<value>(?:(?!{DSML}).)*)</{DSML}parameter>\\s*",
        f"</{DSML}invoke>\\s*(?:</{DSML}function_calls>)?",
    ),
    "seed": _tagged(
        r"(?:<seed:tool_call>\s*)?<function=([^<>\n]+)>\s*",
        r"<parameter=(?P<key>[^<>\n]+)>(?P<value>(?:(?!<parameter=[^<>\n]+>|</parameter>).)*)"
        r"</parameter>\s*",
        r"(?:</function>)?\s*(?:</seed:tool_call>)?",
    ),
    "minimax": _tagged(
        r"(?:<minimax:tool_call>\s*)?<invoke name=\"([^<>\"\n]+)\">\s*",
        r"<parameter name=\"(?P<key>[^<>\"\n]+)\">"
        r"(?P<value>(?:(?!\n<parameter name=|<parameter name=\"[^<>\"\n]+\">|</parameter>).)*)"
        r"</parameter>\s*",
        r"</invoke>\s*(?:</minimax:tool_call>)?",
    ),
    "lfm2": _marked(r"<\|tool_call_start\|>(.*?)(?:<\|tool_call_end\|>)?", _pythonic),
    "function_gemma": _gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma_4": _gemma(r"<\|tool_call>", r"<tool_call\|>", '<|"|>'),
}
