"""Jobs for workers, harmless and hostile."""

from __future__ import annotations

from typing import Any

from inference.protocol.generation import ChatInput, ChatMessage, OutputFormat
from inference.sandbox.jobs import BuildGrammar, RenderChat, TokenizerFacts

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
LOOPS = (
    "{% for a in range(90000) %}{% for b in range(90000) %}{% for c in range(90000) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)
"""Never ends."""
PANICS = {"type": "string", "minLength": "😀" * 50}
"""llguidance quotes it in a message, cut inside a character."""

BYTES = TokenizerFacts(
    digest="bytes",
    tokens=[*(bytes([byte]) for byte in range(256)), b"<end>"],
    special_token_ids=[256],
    end_token_ids=[256],
)


def render(template: str, text: str = "Hi") -> RenderChat:
    return RenderChat(
        default_template=template,
        tool_template=None,
        special_tokens={},
        chat=ChatInput(messages=[ChatMessage(role="user", content=text)]),
    )


def check(schema: Any, *, tokenizer: str = "", is_lenient: bool = False) -> BuildGrammar:
    output_format = OutputFormat(path="schema", schema=schema, strict=not is_lenient)
    return BuildGrammar(output_format=output_format, tokenizer=tokenizer)


def lark(text: str, *, tokenizer: str = "") -> BuildGrammar:
    return BuildGrammar(
        output_format=OutputFormat(path="guided", grammar=text), tokenizer=tokenizer
    )
