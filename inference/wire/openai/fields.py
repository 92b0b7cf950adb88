"""Fields that several of OpenAI's dialects share. vLLM's extensions keep vLLM's names.

Sources: vLLM's protocol, llama.cpp's server, Hugging Face's generation parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.protocol.generation import GenerationRequest, SamplingOptions, TextInput, TokensInput
from inference.wire import fields as f
from inference.wire.dialect import RequestContext
from inference.wire.errors import InvalidRequestError
from inference.wire.openai.answers import UsageReporting

END_USER_NOTE = "The end user, recorded where the key may name one."
USER = f.honoured("user", f.text(512), END_USER_NOTE)
SAFETY_IDENTIFIER = f.honoured(
    "safety_identifier", f.text(128), f"{END_USER_NOTE} Counts without a user."
)
TIMING_HEADER = "x-helexa-timing"
TRUE_WORDS = frozenset({"true", "1", "yes"})
FALSE_WORDS = frozenset({"false", "0", "no"})
"""Servers without the timing header ignore it, but would refuse an unknown field."""

MAX_TOKENS = 2**31 - 1
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 64
"""OpenAI's own limit is 4; autocompletes and evaluation suites send twice as many."""
MAX_STOP_TOKEN_IDS = 1024
MAX_PROMPT_LOGPROBS = 20
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 10.0
"""Scores divided by much less than the least overflow."""

token_id = f.integer(0, f.MAX_TOKEN_ID)
seed = f.integer(-(2**63), 2**63 - 1)
_bias = f.number(-100, 100)
_stop_string = f.text(min_chars=1)
_stop_strings = f.array(_stop_string, MAX_STOP_STRINGS)


def stop(value: Any, path: str) -> list[str]:
    if isinstance(value, str):
        return [_stop_string(value, path)]
    if not isinstance(value, list):
        raise f.wrong_type(path, "a string or an array of strings", value)
    return _stop_strings(value, path)


def logit_bias(value: Any, path: str) -> dict[int, float]:
    if not isinstance(value, dict):
        raise f.wrong_type(path, "an object", value)
    biases = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= f.MAX_TOKEN_ID):
            raise InvalidRequestError(f"'{path}' must have token ids as its keys.", param=path)
        biases[int(key)] = _bias(bias, f"{path}.{key}")
    return biases


def top_k(value: Any, path: str) -> int:
    """-1 and 0 both mean off, which is 0 inside."""
    checked: int = f.integer(-1, f.MAX_TOKEN_ID)(value, path)
    return max(checked, 0)


def metadata(value: Any, path: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise f.wrong_type(path, "an object", value)
    if len(value) > 16:
        raise InvalidRequestError(f"'{path}' may have 16 pairs.", param=path)
    check_key, check_value = f.text(64), f.text(512)
    return {check_key(key, path): check_value(item, path) for key, item in value.items()}


STREAM_OPTION_FIELDS = f.table(
    f.honoured("include_usage", f.flag, "A usage chunk before [DONE]."),
    f.honoured(
        "continuous_usage_stats",
        f.flag,
        "Extension; with include_usage, the usage so far in every chunk.",
    ),
    f.honoured(
        "include_obfuscation", f.flag, "true: chunks are padded to one size; else they are not."
    ),
)

_SAMPLED = "tokens are sampled, not searched for"


OTHER_SERVERS_FIELDS: tuple[f.Field, ...] = (
    f.fixed("use_beam_search", False, _SAMPLED),
    f.fixed("length_penalty", 1, _SAMPLED),
    f.fixed("early_stopping", False, _SAMPLED),
    f.fixed("skip_special_tokens", True, "special tokens are never part of a text"),
    f.neutral(
        "spaces_between_special_tokens",
        f.only(True, False, reason="true or false"),
        "Special tokens are never part of a text.",
    ),
    f.fixed("include_stop_str_in_output", False, "what ends an answer is not part of it"),
    f.fixed("bad_words", [], "use logit_bias"),
    f.fixed("logits_processors", [], "no code is taken from clients"),
    f.fixed("priority", 0, "callers take turns by account"),
    f.fixed("return_tokens_as_token_ids", False, "use return_token_ids instead"),
    f.fixed("cache_prompt", True, "prefixes are always cached"),
    f.fixed("mirostat", 0, "there is no mirostat; use top_p, top_k, min_p"),
    f.fixed("typical_p", 1, "use top_p, top_k, min_p"),
    f.fixed("tfs_z", 1, "use top_p, top_k, min_p"),
    f.neutral("request_id", f.text(512), "A label; kept nowhere."),
    f.fixed("vllm_xargs", {}, "there are no such arguments here"),
    f.refused("truncate_prompt_tokens", "prompts are never cut"),
    f.refused("allowed_token_ids", "use structured_outputs, or logit_bias"),
    f.refused("cache_salt", "prefixes are shared within an account only"),
    f.refused("kv_transfer_params", "keys and values are not handed in"),
    f.refused("mm_processor_kwargs", "images are read as the model's own files declare"),
)
"""Clients send these with values that change nothing; other values are refused."""

MODEL = f.required("model", f.model_name, "A catalogue model's name or an alias; echoed as given.")
SHARED_FIELDS = f.table(
    MODEL,
    f.honoured("stream", f.flag, "Server-sent events instead of one body."),
    f.honoured(
        "stream_options",
        STREAM_OPTION_FIELDS.read,
        "include_usage, continuous_usage_stats; only with stream.",
    ),
    f.honoured("stop", stop, f"One string or up to {MAX_STOP_STRINGS}."),
    f.honoured("temperature", f.number(0, 2), "0 to 2; under 0.00001 is greedy."),
    f.honoured("top_p", f.number(0, 1), "0 to 1."),
    f.honoured("presence_penalty", f.number(-2, 2), "-2 to 2."),
    f.honoured("frequency_penalty", f.number(-2, 2), "-2 to 2."),
    f.honoured("logit_bias", logit_bias, "Token ids to -100 … 100."),
    f.honoured("seed", seed, "A 64-bit integer."),
    f.honoured("n", f.integer(1, MAX_CHOICES), f"Answers to each prompt, up to {MAX_CHOICES}."),
    f.honoured("top_k", top_k, "Extension; -1 or 0 is off."),
    f.honoured("min_p", f.number(0, 1), "Extension; 0 to 1."),
    f.honoured(
        "repetition_penalty",
        f.number(MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
        "Extension; 0.01 to 10; 1 is off.",
    ),
    f.honoured(
        "min_tokens",
        f.integer(0, MAX_TOKENS),
        "Extension; stops are ignored until then; an answer that is complete by its grammar ends.",
    ),
    f.honoured("ignore_eos", f.flag, "Extension; continue after the model's end token."),
    f.honoured(
        "stop_token_ids", f.array(token_id, MAX_STOP_TOKEN_IDS), "Extension; tokens that end it."
    ),
    f.honoured(
        "return_token_ids",
        f.flag,
        "Extension; prompt_token_ids, and token_ids of each choice, in chunks of their own.",
    ),
    f.honoured(
        "prompt_logprobs",
        f.integer(0, MAX_PROMPT_LOGPROBS),
        "Extension; 0 to 20: each prompt token's log probability and rank, and as many of the most "
        "likely tokens' in its place; not with stream.",
    ),
    USER,
    *OTHER_SERVERS_FIELDS,
)

PROMPT_CACHE_FIELDS = f.table(f.fixed("mode", "implicit", "only implicit"))
SERVICE_FIELDS: tuple[f.Field, ...] = (
    SAFETY_IDENTIFIER,
    f.fixed("prompt_cache_retention", "in_memory", "only in_memory"),
    f.neutral("prompt_cache_options", PROMPT_CACHE_FIELDS.read, "mode implicit"),
    f.neutral("service_tier", f.only("auto", "default", reason="only auto or default"), "auto"),
    f.refused("moderation", "nothing is moderated here"),
)

SAMPLING_NAMES = frozenset(SamplingOptions.__struct_fields__) - {"max_tokens", "top_logprobs"}


def sampling_options(
    read: dict[str, Any], *, max_tokens: int | None, top_logprobs: int | None
) -> SamplingOptions:
    min_tokens = read.get("min_tokens", 0)
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidRequestError(
            f"'min_tokens' ({min_tokens}) is over the maximum of {max_tokens} tokens.",
            param="min_tokens",
        )
    if "prompt_logprobs" in read and read.get("stream", False):
        raise InvalidRequestError(
            "'prompt_logprobs' is only returned in a whole answer: leave 'stream' out.",
            param="prompt_logprobs",
        )
    given = {name: read[name] for name in SAMPLING_NAMES & read.keys()}
    return SamplingOptions(max_tokens=max_tokens, top_logprobs=top_logprobs, **given)


def asked_answer(
    read: dict[str, Any],
    context: RequestContext,
    *,
    max_tokens: int | None,
    top_logprobs: int | None,
    **of_generation: Any,
) -> dict[str, Any]:
    return {
        "generation": GenerationRequest(
            model=read["model"],
            sampling=sampling_options(read, max_tokens=max_tokens, top_logprobs=top_logprobs),
            stop=read.get("stop", []),
            returns_token_ids=read.get("return_token_ids", False),
            n=read.get("n", 1),
            end_user=end_user_of(read),
            **of_generation,
        ),
        "stream": read.get("stream", False),
        "usage": usage_reporting(read, context),
        "pads_chunks": read.get("stream_options", {}).get("include_obfuscation", False),
    }


def top_logprobs(read: dict[str, Any]) -> int | None:
    top: int = read.get("top_logprobs", 0)
    if read.get("logprobs", False):
        return top
    if top:
        raise InvalidRequestError(
            "'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs"
        )
    return None


def flag_header(context: RequestContext, name: str) -> bool:
    word = context.headers.get(name, "false").strip().lower()
    if word not in TRUE_WORDS | FALSE_WORDS:
        raise InvalidRequestError(
            f"The header '{name}' must be true (also 1 or yes) or false (also 0 or no).", param=name
        )
    return word in TRUE_WORDS


def usage_reporting(read: dict[str, Any], context: RequestContext) -> UsageReporting:
    options = read.get("stream_options", {})
    if "stream_options" in read and not read.get("stream", False):
        raise InvalidRequestError(
            "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
        )
    reports_timing = flag_header(context, TIMING_HEADER)
    includes_usage = context.always_include_usage or options.get("include_usage", False)
    if options.get("continuous_usage_stats", False):
        if not includes_usage:
            raise InvalidRequestError(
                "'continuous_usage_stats' is only allowed when 'include_usage' is true.",
                param="stream_options.continuous_usage_stats",
            )
        if reports_timing:
            raise InvalidRequestError(
                f"The header '{TIMING_HEADER}' goes with the usage of the last chunk alone.",
                param="stream_options.continuous_usage_stats",
            )
        return UsageReporting.RUNNING
    if reports_timing:
        return UsageReporting.TIMED
    return UsageReporting.LAST if includes_usage else UsageReporting.NEVER


def end_user_of(read: Mapping[str, Any]) -> str:
    named: str = read.get("user") or read.get("safety_identifier") or ""
    return named


_text = f.text(min_chars=1)
_each_token_id = f.array(f.integer(0, f.MAX_TOKEN_ID), min_items=1)


def prompts(max_prompts: int) -> f.Check[Any]:
    """The first item of an array decides its kind."""
    texts = f.array(_text, max_prompts, min_items=1)
    lists_of_token_ids = f.array(token_ids, max_prompts)

    def check(value: Any, path: str) -> TextInput | TokensInput:
        if isinstance(value, str):
            return TextInput(texts=[_text(value, path)])
        if not isinstance(value, list):
            raise f.wrong_type(path, "a string or an array", value)
        match value[:1]:
            case [list()]:
                return TokensInput(prompts=lists_of_token_ids(value, path))
            case [int()]:
                return TokensInput(prompts=[token_ids(value, path)])
        return TextInput(texts=texts(value, path))

    return check


def token_ids(value: Any, path: str) -> list[int]:
    """A prompt may have 10^5 ids, so paths are made only for a wrong one."""
    are_integers = isinstance(value, list) and set(map(type, value)) == {int}
    if are_integers and min(value) >= 0 and max(value) <= f.MAX_TOKEN_ID:
        return value  # type: ignore[no-any-return]
    return _each_token_id(value, path)
