"""Other servers' fields of chat and completions that clients send with values that ask for what
happens here anyway, and what a field of theirs that cannot be honoured is refused with. Pure.

Sources: vLLM's protocol, llama.cpp's server, Hugging Face's generation parameters.
"""

from __future__ import annotations

from inference.wire.common.fields import Check, Field, neutral, only, refused, text

_SAMPLED = "tokens are sampled, not searched for"


def _number(value: int, reason: str) -> Check:
    """JSON has one kind of number: 1 and 1.0 are the same."""
    return only(value, float(value), reason=reason)


NEUTRAL_FIELDS: tuple[Field, ...] = (
    neutral("use_beam_search", only(False, reason=_SAMPLED), "false"),
    neutral("length_penalty", _number(1, _SAMPLED), "1"),
    neutral("early_stopping", only(False, reason=_SAMPLED), "false"),
    neutral(
        "skip_special_tokens", only(True, reason="special tokens are never part of a text"), "true"
    ),
    neutral(
        "spaces_between_special_tokens",
        only(True, False, reason="true or false"),
        "Special tokens are never part of a text.",
    ),
    neutral(
        "include_stop_str_in_output",
        only(False, reason="what ends an answer is not part of it"),
        "false",
    ),
    neutral("bad_words", only([], reason="use logit_bias"), "[]"),
    neutral("logits_processors", only([], reason="no code is taken from clients"), "[]"),
    neutral("priority", _number(0, "callers take turns by account"), "0"),
    neutral(
        "return_tokens_as_token_ids", only(False, reason="use return_token_ids instead"), "false"
    ),
    neutral("cache_prompt", only(True, reason="prefixes are always cached"), "true"),
    neutral("mirostat", _number(0, "there is no mirostat; use top_p, top_k, min_p"), "0"),
    neutral("typical_p", _number(1, "use top_p, top_k, min_p"), "1"),
    neutral("tfs_z", _number(1, "use top_p, top_k, min_p"), "1"),
    neutral("request_id", text(512), "A label; kept nowhere."),
    neutral("vllm_xargs", only({}, reason="there are no such arguments here"), "{}"),
    refused("truncate_prompt_tokens", "prompts are never cut"),
    refused("allowed_token_ids", "use structured_outputs, or logit_bias"),
    refused("cache_salt", "prefixes are shared within an account only"),
    refused("kv_transfer_params", "keys and values are not handed in"),
    refused("mm_processor_kwargs", "images are read as the model's own files declare"),
)
