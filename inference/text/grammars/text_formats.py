"""Answers that must be some text other than JSON, as parts of a grammar: an expression, one of
several texts, or a client's own grammar."""

from __future__ import annotations

import json
from typing import Any

from llguidance.gbnf_to_lark import gbnf_to_lark

from inference.protocol.generation import OutputFormat
from inference.text.errors import GrammarTextError


def text_part(output_format: OutputFormat) -> dict[str, Any]:
    """The grammar of a text format. ``compiling.problem_of`` checks whether it can be enforced.
    Raises ``GrammarTextError``."""
    if output_format.regex is not None:
        return {"lark_grammar": f"start: /{_escaped(output_format.regex)}/"}
    if output_format.choices:
        texts = " | ".join(_quoted(choice) for choice in dict.fromkeys(output_format.choices))
        return {"lark_grammar": f"start: {texts}"}
    assert output_format.grammar is not None, "a format that is JSON"
    return {"lark_grammar": _lark(output_format.grammar)}


def _escaped(regex: str) -> str:
    """Returns the regex as it stands between slashes and on one line in lark."""
    escaped, is_escape = [], False
    for char in regex:
        if char == "\n":
            escaped.append("n" if is_escape else r"\n")
        elif char == "/" and not is_escape:
            escaped.append(r"\/")
        else:
            escaped.append(char)
        is_escape = char == "\\" and not is_escape
    return "".join(escaped)


def _quoted(text: str) -> str:
    """Lark's strings have JSON's escapes."""
    return json.dumps(text, ensure_ascii=False)


def _lark(grammar: str) -> str:
    """Lark text of a lark or GBNF grammar; only GBNF writes ``::=``. Its converter is a library's
    and may raise anything."""
    if "::=" not in grammar:
        return grammar
    try:
        return str(gbnf_to_lark(grammar))
    except Exception as error:
        raise GrammarTextError(f"the grammar cannot be read: {error}") from error
