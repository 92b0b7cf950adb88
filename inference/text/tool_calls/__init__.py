"""Tool calls as models write them. A model's format is detected from its chat template, else from
its tokenizer."""

from __future__ import annotations

from inference.text.reasoning import CHANNEL, MESSAGE
from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import CallFormat
from inference.text.tool_calls.gemma import FUNCTION_GEMMA, GEMMA_4, GemmaFormat
from inference.text.tool_calls.json_formats import (
    CALL_BEGIN,
    COMMAND_R,
    DEEPSEEK,
    DEEPSEEK_V31,
    FENCE,
    FUNCTOOLS,
    GRANITE,
    HERMES,
    HUNYUAN,
    KIMI,
    MISTRAL_ARGUMENTS,
    MISTRAL_CALLS,
    NEMOTRON,
    HarmonyFormat,
    JsonListFormat,
    MistralFormat,
    PlainFormat,
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

FORMATS: dict[str, CallFormat] = {
    one.name: one
    for one in (
        *map(TagFormat, (GLM, GLM_WITHOUT_LINES, DSML_V32, DSML_V4, MINIMAX, SEED, QWEN_CODER)),
        *map(SectionFormat, (DEEPSEEK, DEEPSEEK_V31, KIMI)),
        *map(GemmaFormat, (FUNCTION_GEMMA, GEMMA_4)),
        *map(JsonListFormat, (HERMES, GRANITE, HUNYUAN, NEMOTRON, COMMAND_R, FUNCTOOLS)),
        *(MistralFormat(writes_lists=writes_lists) for writes_lists in (True, False)),
        *(HarmonyFormat(), Lfm2Format(), Llama3Format(), PlainFormat()),
    )
}
_LLAMA_PROMPTS = (LLAMA_TAG, "dictionary of argument name", "[func_name1(")
"""Llama's tag, and phrases of its templates that ask for calls as JSON and as Python."""


def find_tool_format(template: str | None, tokenizer: Tokenizer) -> CallFormat | None:
    """``template`` renders chats with tools."""
    if template is None or "tools" not in template:
        return None
    for name, texts in _texts(template).items():
        if all(text in template for text in texts):
            return FORMATS[name]
    if MISTRAL_CALLS in template or tokenizer.single_token_id(MISTRAL_CALLS) is not None:
        return FORMATS["mistral_named" if MISTRAL_ARGUMENTS in template else "mistral"]
    is_llama = any(text in template for text in _LLAMA_PROMPTS)
    has_tag = tokenizer.single_token_id(LLAMA_TAG) is not None
    return FORMATS["llama3"] if is_llama or has_tag else None


def _texts(template: str) -> dict[str, tuple[str, ...]]:
    """The texts of a format's templates; formats whose texts no other has come first."""
    has_glm_lines = f"{KEY_END}{VALUE}" not in template
    is_v4 = f"{DSML}function_calls" not in template and f"{DSML}tool_calls" in template
    return {
        "glm" if has_glm_lines else "glm_47": (KEY,),
        "dsml_v4" if is_v4 else "dsml": (DSML,),
        "deepseek" if FENCE in template else "deepseek_v31": (CALL_BEGIN,),
        "lfm2": (LFM2_OPEN,),
        "minimax": MINIMAX.opens,
        "kimi": KIMI.openings[1:],
        "harmony": (MESSAGE, CHANNEL),
        "function_gemma": (FUNCTION_GEMMA.opens,),
        "gemma_4": (GEMMA_4.opens,),
        **{one.name: one.openings[:1] for one in (GRANITE, HUNYUAN, NEMOTRON, COMMAND_R)},
        "functools": ("functools[",),
        "seed": SEED.opens,
        "qwen_coder": (FUNCTION, PARAMETER),
        "hermes": HERMES.openings,
    }
