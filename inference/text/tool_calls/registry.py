"""Detects a model's tool call format from its chat template, else from its tokenizer."""

from __future__ import annotations

from inference.text.answers.harmony import CHANNEL, MESSAGE
from inference.text.answers.parts import ToolFormat
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls import (
    dsml,
    gemma,
    glm,
    harmony,
    json_formats,
    lfm2,
    llama3,
    mistral,
    qwen_coder,
    sections,
    tagged_call,
)
from inference.text.tool_calls.grammar_rules import marker_token_id

LLAMA_PROMPTS = ("dictionary of argument name", "[func_name1(")
"""Phrases of Llama's templates that ask for calls as JSON and as Python."""


def find_tool_format(template: str | None, tokenizer: Tokenizer) -> ToolFormat | None:
    """``template`` is the one that renders chats with tools. ``None``: no format that is known."""
    if template is None or "tools" not in template:
        return None
    if (found := _by_marker(template)) is not None:
        return found
    if tagged_call.SEED_OPEN in template:
        return qwen_coder.SeedFormat()
    if tagged_call.FUNCTION in template and tagged_call.PARAMETER in template:
        return qwen_coder.QwenCoderFormat()
    if json_formats.OPEN in template:
        return json_formats.HermesFormat()
    if mistral.CALLS in template or _has_token(tokenizer, mistral.CALLS):
        return mistral.MistralFormat(writes_lists=mistral.ARGUMENTS not in template)
    if llama3.TAG in template or any(prompt in template for prompt in LLAMA_PROMPTS):
        return llama3.Llama3Format()
    return llama3.Llama3Format() if _has_token(tokenizer, llama3.TAG) else None


def _by_marker(template: str) -> ToolFormat | None:
    """Formats whose markers no other format has."""
    if glm.KEY in template:
        return glm.GlmFormat(has_lines=f"{glm.KEY_END}{glm.VALUE}" not in template)
    if dsml.DSML in template:
        return dsml.DsmlFormat(section=dsml.section_of(template))
    if sections.CALL_BEGIN in template:
        return sections.DeepSeekFormat(writes_fences=sections.FENCE in template)
    if lfm2.START in template:
        return lfm2.Lfm2Format()
    if dsml.MINIMAX_SECTION[0] in template:
        return dsml.MiniMaxFormat()
    if sections.KIMI_CALL[0] in template:
        return sections.KimiFormat()
    if MESSAGE in template and CHANNEL in template:
        return harmony.HarmonyFormat()
    for markers in (gemma.FUNCTION_GEMMA, gemma.GEMMA_4):
        if markers.opens in template:
            return gemma.GemmaFormat(markers)
    listed = json_formats.markers_of(template)
    return None if listed is None else json_formats.JsonListFormat(listed)


def _has_token(tokenizer: Tokenizer, marker: str) -> bool:
    return marker_token_id(tokenizer, marker) is not None
