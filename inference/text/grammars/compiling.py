"""Whether llguidance can follow a grammar, and answers that must be some text other than JSON. It
may crash or hang on a grammar that a stranger wrote, so this is for the workers of
``inference.sandbox`` alone.
"""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import gbnf_to_lark

from inference.protocol.generation import OutputFormat
from inference.text.errors import GrammarRefusedError

LIMITS = LLParserLimits(verbose_errors=False)
"""Errors without the parser's state, which is of no use to a client."""


def find_problem(grammar: str) -> str | None:
    """Why it cannot; ``None`` when it can. Without a tokenizer: token ids are not checked."""
    is_broken, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
    return one_line(messages[0]) if is_broken else None


def is_panic(error: BaseException) -> bool:
    """Whether llguidance panicked: what PyO3 then raises is no ``Exception``, and not exported."""
    return type(error).__name__ == "PanicException"


def one_line(message: str) -> str:
    """``message`` as one line. Messages about regular expressions have several; the last one has
    the reason."""
    if message.startswith("NoExtensionBias"):
        return "nothing can match it"
    first, *others = [line.strip() for line in message.splitlines() if line.strip()]
    return f"{first} {others[-1].removeprefix('error: ')}" if others else first


def text_part(output_format: OutputFormat) -> dict[str, Any]:
    """The grammar of a text format: an expression, one of several texts, or a client's own grammar.
    Raises ``GrammarRefusedError``."""
    if output_format.regex is not None:
        return {"lark_grammar": f"start: /{_escaped(output_format.regex)}/"}
    if output_format.choices:
        texts = " | ".join(_quoted(choice) for choice in dict.fromkeys(output_format.choices))
        return {"lark_grammar": f"start: {texts}"}
    assert output_format.grammar is not None, "a format that is JSON"
    return {"lark_grammar": _lark(output_format.grammar, output_format.path)}


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
    return json.dumps(text, ensure_ascii=False)


def _lark(grammar: str, path: str) -> str:
    """Lark text of a lark or GBNF grammar; only GBNF writes ``::=``. Its converter is a library's
    and may raise anything."""
    if "::=" not in grammar:
        return grammar
    try:
        return str(gbnf_to_lark(grammar))
    except Exception as error:
        message = f"the grammar cannot be read: {error}"
        raise GrammarRefusedError.of_grammar(message, path) from error
