"""Jobs for workers, harmless and hostile."""

from __future__ import annotations

import json
from typing import Any

from inference.protocol.generation import ChatInput, ChatMessage
from inference.sandbox.jobs import CheckSchema, RenderChat, TokenizerFacts

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


def check(schema: Any, *, tokenizer: str = "", is_lenient: bool = False) -> CheckSchema:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return CheckSchema(schema=text, tokenizer=tokenizer, is_lenient=is_lenient)
