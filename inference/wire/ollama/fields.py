"""Fields that Ollama's chat and generate share: options, formats and thinking. Pure.

Source: https://docs.ollama.com/api, the types of the ``ollama`` package.
"""

from __future__ import annotations

import re
from typing import Any

from inference.protocol.generation import OutputFormat
from inference.protocol.sampling import SamplingOptions
from inference.wire.common.fields import (
    Field,
    flag,
    honoured,
    integer,
    json_schema,
    model_name,
    neutral,
    number,
    object_of,
    only,
    table,
    wrong_type,
)
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
"""Ollama's clients put it after names that have no tag of their own."""
EFFORTS = ("low", "medium", "high")
DURATION = re.compile(r"(-?\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+")
_MAX_COUNT = 2**31 - 1
_HOW_IT_RUNS = "How a model is run is its operator's; no answer differs."


def catalogue_name(name: str) -> str:
    return name.removesuffix(DEFAULT_TAG) or name


def num_predict(value: Any, path: str) -> int | None:
    """``None``: until the model ends it, or the context does."""
    checked: int = integer(-2, MAX_TOKENS)(value, path)
    if checked == 0:
        raise InvalidRequestError(f"'{path}' must not be 0.", param=path)
    return checked if checked > 0 else None


def own_seed(value: Any, path: str) -> int | None:
    checked: int = seed(value, path)
    return checked if checked >= 0 else None


def _off(value: int) -> Any:
    return only(value, float(value), reason="use top_p, top_k and min_p")


OPTION_FIELDS = table(
    honoured("temperature", number(0, 2), "0 to 2; under 0.00001 is greedy."),
    honoured("top_p", number(0, 1), "0 to 1."),
    honoured("top_k", top_k, "-1 or 0 is off."),
    honoured("min_p", number(0, 1), "0 to 1."),
    honoured("seed", own_seed, "A 64-bit integer; below 0: another one each time."),
    honoured("stop", stop, "One string or up to 64."),
    honoured("num_predict", num_predict, "At most so many tokens; -1 or -2: no bound."),
    honoured(
        "repeat_penalty",
        number(MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
        "0.01 to 10; 1: off.",
    ),
    honoured("presence_penalty", number(-2, 2), "-2 to 2."),
    honoured("frequency_penalty", number(-2, 2), "-2 to 2."),
    neutral(
        "num_ctx",
        integer(1, _MAX_COUNT),
        "The context is the model's own, whatever is asked for: what does not fit is refused, "
        "never cut.",
    ),
    neutral("num_keep", integer(-1, _MAX_COUNT), "Nothing is cut, so everything is kept."),
    neutral(
        "repeat_last_n",
        integer(-1, _MAX_COUNT),
        "-1 beside a repeat_penalty, which looks at the whole text; else anything.",
    ),
    neutral("penalize_newline", only(True, reason="penalties spare no token"), "true"),
    neutral("tfs_z", _off(1), "1"),
    neutral("typical_p", _off(1), "1"),
    neutral("mirostat", _off(0), "0"),
    neutral("mirostat_tau", number(0, 100), "Ignored: it only matters with mirostat."),
    neutral("mirostat_eta", number(0, 100), "Ignored: it only matters with mirostat."),
    *(
        neutral(name, integer(-1, _MAX_COUNT), _HOW_IT_RUNS)
        for name in ("num_batch", "num_gpu", "main_gpu", "num_thread")
    ),
    *(
        neutral(name, flag, _HOW_IT_RUNS)
        for name in ("numa", "low_vram", "f16_kv", "use_mmap", "use_mlock")
    ),
    neutral("logits_all", only(False, reason="use logprobs"), "false"),
    neutral("vocab_only", only(False, reason="models are loaded whole"), "false"),
    neutral("embedding_only", only(False, reason="use /api/embed"), "false"),
)
options = object_of(OPTION_FIELDS)


def keep_alive(value: Any, path: str) -> None:
    if isinstance(value, str) and not DURATION.fullmatch(value):
        number_text = re.fullmatch(r"-?\d{1,12}", value)
        if number_text is None:
            raise InvalidRequestError(f"'{path}' must be a duration, as 5m or 300.", param=path)
    elif isinstance(value, bool) or not isinstance(value, int | float | str):
        raise wrong_type(path, "a duration", value)
    if value == 0 or (isinstance(value, str) and not re.search(r"[1-9]", value)):
        raise UnsupportedParameterError(
            path, "a model stays loaded until its room is needed or its operator unloads it"
        )


def output_format(value: Any, path: str) -> OutputFormat | None:
    if isinstance(value, str):
        if value not in ("", "json"):
            raise InvalidRequestError(f"'{path}' must be json or a JSON schema.", param=path)
        return OutputFormat(path=path) if value else None
    return OutputFormat(path=path, schema=json_schema(value, path))


def think(value: Any, path: str) -> bool | str:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise wrong_type(path, "true, false or a string", value)
    if value not in EFFORTS:
        raise InvalidRequestError(f"'{path}' must be one of {', '.join(EFFORTS)}.", param=path)
    return value


KEEP_ALIVE = neutral(
    "keep_alive",
    keep_alive,
    "How long it stays loaded is the operator's: at least until its room is needed. 0 is refused.",
)
MODEL = honoured(
    "model", model_name, "A catalogue model's name or an alias; :latest may come after it."
)
SHARED_FIELDS: tuple[Field, ...] = (
    MODEL,
    honoured("options", options, "See the table of options."),
    honoured("format", output_format, "json, or a JSON schema that the answer is held to."),
    honoured("stream", flag, "true, the default: a line of JSON for each piece."),
    honoured("think", think, "true or an effort: it thinks, in thinking; false: it does not."),
    honoured("logprobs", flag, "Log probabilities of the output tokens."),
    honoured("top_logprobs", integer(0, MAX_TOP_LOGPROBS), "0 to 20; only with logprobs."),
    KEEP_ALIVE,
    neutral("truncate", only(False, reason="prompts are never cut; only false"), "false"),
    neutral("shift", only(False, reason="nothing is dropped from a context; only false"), "false"),
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
