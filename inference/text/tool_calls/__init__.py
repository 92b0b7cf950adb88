"""Tool calls as models write them. Each format reads and constrains its own; which one a model has
is detected from its chat template, else from its tokenizer."""

from __future__ import annotations

from inference.text.answers.parts import ToolFormat
from inference.text.answers.reasoning import CHANNEL, MESSAGE
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.gemma import FUNCTION_GEMMA, GEMMA_4, GemmaFormat
from inference.text.tool_calls.grammar_rules import marker_token_id
from inference.text.tool_calls.json_formats import (
    CALL_BEGIN,
    COMMAND_R,
    DEEPSEEK,
    DEEPSEEK_V31,
    FENCE,
    FUNCTOOLS,
    GRANITE,
    HUNYUAN,
    KIMI,
    MISTRAL_ARGUMENTS,
    MISTRAL_CALLS,
    NEMOTRON,
    HarmonyFormat,
    HermesFormat,
    JsonListFormat,
    MistralFormat,
    SectionFormat,
)
from inference.text.tool_calls.python_formats import LFM2_OPEN, LLAMA_TAG, Lfm2Format, Llama3Format
from inference.text.tool_calls.tag_formats import (
    DSML,
    DSML_V4,
    DSML_V32,
    FUNCTION,
    GLM,
    GLM_WITHOUT_LINES,
    KEY,
    KEY_END,
    MINIMAX,
    PARAMETER,
    QWEN_CODER,
    SEED,
    VALUE,
    TagFormat,
)

_LLAMA_PROMPTS = (LLAMA_TAG, "dictionary of argument name", "[func_name1(")
"""Llama's tag, and phrases of its templates that ask for calls as JSON and as Python."""


def find_tool_format(template: str | None, tokenizer: Tokenizer) -> ToolFormat | None:
    """``template`` is the one that renders chats with tools. ``None``: no format that is known."""
    if template is None or "tools" not in template:
        return None
    rows = _formats(template)
    if found := next((one for texts, one in rows if all(t in template for t in texts)), None):
        return found
    if MISTRAL_CALLS in template or marker_token_id(tokenizer, MISTRAL_CALLS) is not None:
        return MistralFormat(writes_lists=MISTRAL_ARGUMENTS not in template)
    is_llama = any(text in template for text in _LLAMA_PROMPTS)
    has_tag = marker_token_id(tokenizer, LLAMA_TAG) is not None
    return Llama3Format() if is_llama or has_tag else None


def _formats(template: str) -> list[tuple[tuple[str, ...], ToolFormat]]:
    """The texts that a format's templates have, those first whose texts no other format has."""
    has_glm_lines = f"{KEY_END}{VALUE}" not in template
    is_v4 = f"{DSML}function_calls" not in template and f"{DSML}tool_calls" in template
    return [
        ((KEY,), TagFormat(GLM if has_glm_lines else GLM_WITHOUT_LINES)),
        ((DSML,), TagFormat(DSML_V4 if is_v4 else DSML_V32)),
        ((CALL_BEGIN,), SectionFormat(DEEPSEEK if FENCE in template else DEEPSEEK_V31)),
        ((LFM2_OPEN,), Lfm2Format()),
        (MINIMAX.opens, TagFormat(MINIMAX)),
        (KIMI.openings[1:], SectionFormat(KIMI)),
        ((MESSAGE, CHANNEL), HarmonyFormat()),
        ((FUNCTION_GEMMA.opens,), GemmaFormat(FUNCTION_GEMMA)),
        ((GEMMA_4.opens,), GemmaFormat(GEMMA_4)),
        *(
            ((markers.openings[0],), JsonListFormat(markers))
            for markers in (GRANITE, HUNYUAN, NEMOTRON, COMMAND_R)
        ),
        (("functools[",), JsonListFormat(FUNCTOOLS)),
        (SEED.opens, TagFormat(SEED)),
        ((FUNCTION, PARAMETER), TagFormat(QWEN_CODER)),
        (HermesFormat.openings, HermesFormat()),
    ]
