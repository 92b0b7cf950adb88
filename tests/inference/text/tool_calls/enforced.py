"""One grammar over one vocabulary, its tools, and calls as models write them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher, grammar_from

from inference.protocol.generation import ToolChoice, ToolDefinition
from tests.inference.text.tool_calls.calls import FORMATS, tool
from tests.inference.text.tool_calls.conftest import END_TOKEN_ID, Vocabulary
from tests.inference.text.tool_calls.family_cases import FAMILIES

PROPERTIES: dict[str, Any] = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "unit": {"enum": ["C", "F"]},
    "exact": {"type": ["boolean", "null"]},
    "near": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
}
DEFINITIONS = {
    "Place": {
        "type": "object",
        "properties": {"lat": {"type": "number"}},
        "required": ["lat"],
        "additionalProperties": False,
    }
}


def _with_definitions(definition: ToolDefinition) -> ToolDefinition:
    assert definition.parameters is not None
    parameters = {**definition.parameters, "$defs": DEFINITIONS}
    return ToolDefinition(
        name=definition.name,
        path=definition.path,
        parameters=parameters,
        strict=definition.strict,
    )


STRICT = _with_definitions(tool("weather", PROPERTIES, required=["city"], strict=True))
LOOSE = _with_definitions(tool("weather", PROPERTIES, required=["city"]))
NOW = ToolDefinition(name="now", path="tools.1", strict=True)
OTHER = tool("other", {"a": {"type": "integer"}})
MAX_STEPS = 300
AUTO, REQUIRED, NAMED = (
    ToolChoice(),
    ToolChoice(mode="required"),
    ToolChoice(mode="required", name="now"),
)


def tagged_call(name: str, arguments: dict[str, Any]) -> str:
    values = [
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>"
        for key, value in arguments.items()
    ]
    return "\n".join([f"<function={name}>", *values, "</function>"])


def written(name: str, *calls: tuple[str, dict[str, Any]]) -> str:
    """Writes these calls as models of that format do."""
    key = "parameters" if name == "llama3" else "arguments"
    objects = [json.dumps({"name": call, key: arguments}) for call, arguments in calls]
    match name:
        case "hermes":
            return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)
        case "qwen_coder":
            return "\n".join(f"<tool_call>\n{tagged_call(*call)}\n</tool_call>" for call in calls)
        case "llama3":
            return "; ".join(objects)
        case "mistral":
            return f"[TOOL_CALLS][{', '.join(objects)}]"
        case _:
            return "".join(f"[TOOL_CALLS]{call}[ARGS]{json.dumps(one)}" for call, one in calls)


class Enforced:
    """One grammar over one vocabulary."""

    def __init__(
        self,
        name: str,
        vocabulary: Vocabulary,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool = True,
    ) -> None:
        tool_format = {**FORMATS, **FAMILIES}[name]
        text = tool_format.grammar(tools, choice, parallel=parallel, tokenizer=vocabulary.text)
        assert text is not None
        self.vocabulary = vocabulary
        self._grammar = grammar_from("lark", text)
        self.start()

    def start(self) -> LLMatcher:
        matcher = LLMatcher(self.vocabulary.grammar, self._grammar)
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def accepts(self, text: str | list[int]) -> bool:
        token_ids = self.vocabulary.encode(text) if isinstance(text, str) else text
        matcher = self.start()
        return all(map(matcher.consume_token, token_ids)) and matcher.is_accepting()

    def walk(
        self, chooser: random.Random, snippets: Sequence[str], *, ends: float, jumps: float
    ) -> str | None:
        """A random answer under the mask; ``None`` for one that does not end. ``ends`` and
        ``jumps``: how often it ends where it may, and goes on with a snippet."""
        matcher, vocabulary = self.start(), self.vocabulary
        token_ids: list[int] = []
        for _ in range(MAX_STEPS):
            if matcher.is_stopped() or (matcher.is_accepting() and chooser.random() < ends):
                return vocabulary.decode(token_ids)
            snippet = vocabulary.encode(chooser.choice(snippets))
            if chooser.random() < jumps and matcher.validate_tokens(snippet) == len(snippet):
                chosen = snippet
            else:
                bias = matcher.compute_logit_bias()
                chosen = [chooser.choice([i for i, allowed in enumerate(bias) if allowed])]
            if chosen == [END_TOKEN_ID]:
                return vocabulary.decode(token_ids)
            assert matcher.consume_tokens(chosen), matcher.get_error()
            token_ids += chosen
        return None
