"""Fields that Ollama's chat and generate share: options, formats and thinking. Pure.

Source: https://docs.ollama.com/api, the types of the ``ollama`` package.
"""

from __future__ import annotations

import re
from typing import Any

from inference.protocol.generation import OutputFormat
from inference.protocol.sampling import SamplingOptions
from inference.wire import fields as f
from inference.wire.errors import InvalidRequestError, UnsupportedParameterError
from inference.wire.openai.fields import (
    MAX_REPETITION_PENALTY,
    MAX_TOKENS,
    MAX_TOP_LOGPROBS,
    MIN_REPETITION_PENALTY,
    seed,
    stop,
    top_k,
    top_logprobs,
)

DEFAULT_TAG = ":latest"
"""Ollama's clients append it to names without a tag."""
EFFORTS = ("low", "medium", "high")
DURATION = re.compile(r"(-?\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+")
_MAX_COUNT = 2**31 - 1
_OTHERS = "use top_p, top_k and min_p"
_HOW_IT_RUNS = "How a model is run is its operator's; no answer differs."


def catalogue_name(name: str) -> str:
    return name.removesuffix(DEFAULT_TAG) or name


def num_predict(value: Any, path: str) -> int | None:
    """``None``: until the model stops, or the context is full."""
    checked: int = f.integer(-2, MAX_TOKENS)(value, path)
    if checked == 0:
        raise InvalidRequestError(f"'{path}' must not be 0.", param=path)
    return checked if checked > 0 else None


def own_seed(value: Any, path: str) -> int | None:
    checked: int = seed(value, path)
    return checked if checked >= 0 else None


OPTION_FIELDS = f.table(
    f.honoured("temperature", f.number(0, 2), "0 to 2; under 0.00001 is greedy."),
    f.honoured("top_p", f.number(0, 1), "0 to 1."),
    f.honoured("top_k", top_k, "-1 or 0 is off."),
    f.honoured("min_p", f.number(0, 1), "0 to 1."),
    f.honoured("seed", own_seed, "A 64-bit integer; below 0: another one each time."),
    f.honoured("stop", stop, "One string or up to 64."),
    f.honoured("num_predict", num_predict, "At most so many tokens; -1 or -2: no bound."),
    f.honoured(
        "repeat_penalty",
        f.number(MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
        "0.01 to 10; 1: off.",
    ),
    f.honoured("presence_penalty", f.number(-2, 2), "-2 to 2."),
    f.honoured("frequency_penalty", f.number(-2, 2), "-2 to 2."),
    f.neutral(
        "num_ctx",
        f.integer(1, _MAX_COUNT),
        "The context is the model's own, whatever is asked for: what does not fit is refused, "
        "never cut.",
    ),
    f.neutral("num_keep", f.integer(-1, _MAX_COUNT), "Nothing is cut, so everything is kept."),
    f.neutral(
        "repeat_last_n",
        f.integer(-1, _MAX_COUNT),
        "-1 beside a repeat_penalty, which looks at the whole text; else anything.",
    ),
    f.fixed("penalize_newline", True, "penalties spare no token"),
    f.fixed("tfs_z", 1, _OTHERS),
    f.fixed("typical_p", 1, _OTHERS),
    f.fixed("mirostat", 0, _OTHERS),
    f.neutral("mirostat_tau", f.number(0, 100), "Ignored: it only matters with mirostat."),
    f.neutral("mirostat_eta", f.number(0, 100), "Ignored: it only matters with mirostat."),
    *(
        f.neutral(name, f.integer(-1, _MAX_COUNT), _HOW_IT_RUNS)
        for name in ("num_batch", "num_gpu", "main_gpu", "num_thread")
    ),
    *(
        f.neutral(name, f.flag, _HOW_IT_RUNS)
        for name in ("numa", "low_vram", "f16_kv", "use_mmap", "use_mlock")
    ),
    f.fixed("logits_all", False, "use logprobs"),
    f.fixed("vocab_only", False, "models are loaded whole"),
    f.fixed("embedding_only", False, "use /api/embed"),
)


def keep_alive(value: Any, path: str) -> None:
    if isinstance(value, str) and not DURATION.fullmatch(value):
        number_text = re.fullmatch(r"-?\d{1,12}", value)
        if number_text is None:
            raise InvalidRequestError(f"'{path}' must be a duration, as 5m or 300.", param=path)
    elif isinstance(value, bool) or not isinstance(value, int | float | str):
        raise f.wrong_type(path, "a duration", value)
    if value == 0 or (isinstance(value, str) and not re.search(r"[1-9]", value)):
        raise UnsupportedParameterError(
            path, "a model stays loaded until its room is needed or its operator unloads it"
        )


def output_format(value: Any, path: str) -> OutputFormat | None:
    if isinstance(value, str):
        if value not in ("", "json"):
            raise InvalidRequestError(f"'{path}' must be json or a JSON schema.", param=path)
        return OutputFormat(path=path) if value else None
    return OutputFormat(path=path, schema=f.json_schema(value, path), strict=False)


def think(value: Any, path: str) -> bool | str:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise f.wrong_type(path, "true, false or a string", value)
    if value not in EFFORTS:
        raise InvalidRequestError(f"'{path}' must be one of {', '.join(EFFORTS)}.", param=path)
    return value


KEEP_ALIVE = f.neutral(
    "keep_alive",
    keep_alive,
    "How long it stays loaded is the operator's: at least until its room is needed. 0 is refused.",
)
MODEL = f.required(
    "model", f.model_name, "A catalogue model's name or an alias; :latest may come after it."
)
SHARED_FIELDS: tuple[f.Field, ...] = (
    MODEL,
    f.honoured("options", OPTION_FIELDS.read, "See the table of options."),
    f.honoured("format", output_format, "json, or a JSON schema that the answer is held to."),
    f.honoured("stream", f.flag, "true, the default: a line of JSON for each piece."),
    f.honoured("think", think, "true or an effort: it thinks, in thinking; false: it does not."),
    f.honoured("logprobs", f.flag, "Log probabilities of the output tokens."),
    f.honoured("top_logprobs", f.integer(0, MAX_TOP_LOGPROBS), "0 to 20; only with logprobs."),
    KEEP_ALIVE,
    f.fixed("truncate", False, "prompts are never cut; only false"),
    f.fixed("shift", False, "nothing is dropped from a context; only false"),
)


def sampling_options(read: dict[str, Any]) -> SamplingOptions:
    given = read.get("options", {})
    if given.get("repeat_penalty", 1) != 1 and given.get("repeat_last_n", -1) != -1:
        raise UnsupportedParameterError(
            "options.repeat_last_n", "penalties look at the whole text; only -1"
        )
    names = ("temperature", "top_p", "top_k", "min_p", "seed")
    penalties = ("presence_penalty", "frequency_penalty")
    return SamplingOptions(
        **{name: given[name] for name in (*names, *penalties) if name in given},
        repetition_penalty=given.get("repeat_penalty"),
        max_tokens=given.get("num_predict"),
        top_logprobs=top_logprobs(read),
    )
