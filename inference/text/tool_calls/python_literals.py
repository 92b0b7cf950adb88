"""Python literals as models write them in calls: those that JSON can express. Pure.

Only plain literals are read: no string prefix, no adjacent strings, no comment, no number in
another base, no duplicate key. All of those drop characters or change their meaning.
"""

from __future__ import annotations

import ast
import re

_JSON_NAMES = {"true": True, "false": False, "null": None}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_PYTHON_ESCAPES = frozenset("\\'\"abfnrtvxNuU\n")
_OCTAL_DIGITS = frozenset("01234567")
_TOKEN = re.compile(
    r"(?P<string>'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")"
    r"|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<mark>[\[\]{}(),:=])"
    r"|(?P<space>[ \t\r\n]+)",
    re.DOTALL,
)


def parse_literals(text: str) -> ast.expr:
    """The parsed expression. Raises ``SyntaxError`` or ``ValueError`` for anything but plain
    literals; the caller decides whether a call of the name before the arguments is allowed."""
    position, has_value, follows_comma = 0, False, False
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError("no plain literal")
        if token.lastgroup not in ("mark", "space"):
            if has_value:
                raise ValueError("two values side by side")
            has_value = True
            follows_comma = False
        elif token.lastgroup == "mark":
            if follows_comma and token.group() in ")]}":
                raise ValueError("a comma behind which an item may be missing")
            has_value, follows_comma = False, token.group() == ","
        position = token.end()
    return ast.parse(_ESCAPE.sub(_python_escape, text).strip(), mode="eval").body


def literal_value(node: ast.expr) -> object:
    """Raises ``ValueError``."""
    for one in ast.walk(node):
        if isinstance(one, ast.Dict):
            keys = [key.value for key in one.keys if isinstance(key, ast.Constant)]
            if len(set(keys)) < len(one.keys) or not all(isinstance(key, str) for key in keys):
                raise ValueError("a key that stands twice, or is no text")
    value: object = ast.literal_eval(_JsonNames().visit(node))
    return value


def _python_escape(escape: re.Match[str]) -> str:
    """Python warns of escapes that it does not have, and keeps their backslash. Raises
    ``ValueError`` for ``\\1``, which is a character to Python and a group in regular
    expressions."""
    if escape.group(1) in _OCTAL_DIGITS:
        raise ValueError("an escape by digits has two readings")
    return escape.group() if escape.group(1) in _PYTHON_ESCAPES else f"\\{escape.group()}"


class _JsonNames(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        is_json = node.id in _JSON_NAMES
        return ast.copy_location(ast.Constant(_JSON_NAMES[node.id]), node) if is_json else node
