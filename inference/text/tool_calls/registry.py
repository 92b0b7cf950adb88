"""Detects a model's tool call format from its chat template, else from its tokenizer."""

from __future__ import annotations

from inference.text.answers.parts import ToolFormat
from inference.text.answers.reasoning import CHANNEL, MESSAGE
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls import (
    gemma,
    headed_formats,
    json_formats,
    python_formats,
    tag_formats,
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
    if tag_formats.SEED.opens[0] in template:
        return tag_formats.TagFormat(tag_formats.SEED)
    if tag_formats.FUNCTION in template and tag_formats.PARAMETER in template:
        return tag_formats.TagFormat(tag_formats.QWEN_CODER)
    if json_formats.OPEN in template:
        return json_formats.HermesFormat()
    if headed_formats.MISTRAL_CALLS in template or _has_token(
        tokenizer, headed_formats.MISTRAL_CALLS
    ):
        return headed_formats.MistralFormat(
            writes_lists=headed_formats.MISTRAL_ARGUMENTS not in template
        )
    tag = python_formats.LLAMA_TAG
    is_llama = any(text in template for text in (tag, *LLAMA_PROMPTS)) or _has_token(tokenizer, tag)
    return python_formats.Llama3Format() if is_llama else None


def _by_marker(template: str) -> ToolFormat | None:
    """Formats whose markers no other format has."""
    if tag_formats.KEY in template:
        has_lines = f"{tag_formats.KEY_END}{tag_formats.VALUE}" not in template
        return tag_formats.TagFormat(
            tag_formats.GLM if has_lines else tag_formats.GLM_WITHOUT_LINES
        )
    if tag_formats.DSML in template:
        is_v4 = f"{tag_formats.DSML}function_calls" not in template and (
            f"{tag_formats.DSML}tool_calls" in template
        )
        return tag_formats.TagFormat(tag_formats.DSML_V4 if is_v4 else tag_formats.DSML_V32)
    if headed_formats.CALL_BEGIN in template:
        return headed_formats.DeepSeekFormat(writes_fences=headed_formats.FENCE in template)
    if python_formats.START in template:
        return python_formats.Lfm2Format()
    if tag_formats.MINIMAX.opens[0] in template:
        return tag_formats.TagFormat(tag_formats.MINIMAX)
    if headed_formats.KIMI_CALL[0] in template:
        return headed_formats.KimiFormat()
    if MESSAGE in template and CHANNEL in template:
        return headed_formats.HarmonyFormat()
    for markers in (gemma.FUNCTION_GEMMA, gemma.GEMMA_4):
        if markers.opens in template:
            return gemma.GemmaFormat(markers)
    listed = json_formats.markers_of(template)
    return None if listed is None else json_formats.JsonListFormat(listed)


def _has_token(tokenizer: Tokenizer, marker: str) -> bool:
    return marker_token_id(tokenizer, marker) is not None
