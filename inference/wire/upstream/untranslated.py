"""Refusals of fields that are not translated for upstreams, by the client's names. Pure.

A value that changes nothing (a penalty of 0) is no reason to refuse: clients send them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from inference.protocol.generation import GenerationRequest, OutputFormat
from inference.protocol.sampling import NEUTRAL_VALUES, SamplingOptions
from inference.wire.errors import ApiError, InvalidRequestError, UnsupportedParameterError

BY_UPSTREAM = "the model is served by an upstream, for which it is not translated"


def refuse(asked: Mapping[str, bool]) -> None:
    """``asked``: by name, whether the client wants it. Raises ``UnsupportedParameterError``."""
    for name, is_asked in asked.items():
        if is_asked:
            raise UnsupportedParameterError(name, BY_UPSTREAM)


def refuse_unknown(request: GenerationRequest) -> None:
    """What no upstream's dialect has a word for. Raises ``UnsupportedParameterError``."""
    refuse(
        {
            "return_token_ids": request.returns_token_ids,
            "prompt_logprobs": request.sampling.prompt_logprobs is not None,
            "repetition_window": request.sampling.repetition_window is not None,
            "echo": request.echo,
        }
    )


def refuse_options(options: SamplingOptions, names: Iterable[str]) -> None:
    """Raises ``UnsupportedParameterError`` where one of the named ones is set."""
    refuse({name: is_set(options, name) for name in names})


def is_set(options: SamplingOptions, name: str) -> bool:
    """Whether the option changes an answer."""
    value = getattr(options, name)
    if name in NEUTRAL_VALUES:
        return value is not None and value != NEUTRAL_VALUES[name]
    return value is not None if name in ("seed", "top_logprobs") else bool(value)


def refuse_format(
    wanted: OutputFormat | None, *, allows_json: bool, needs_schema: bool = False
) -> None:
    """``needs_schema``: there is no word for JSON of any form. Raises
    ``UnsupportedParameterError``."""
    if wanted is None:
        return
    if not (wanted.is_json and allows_json):
        raise UnsupportedParameterError(wanted.path, BY_UPSTREAM)
    if needs_schema and not isinstance(wanted.schema, dict):
        raise UnsupportedParameterError(
            wanted.path, "the model is served by an upstream that takes JSON by a schema alone"
        )


def not_forwarded(model: str, upstream: str, dialect: str) -> ApiError:
    """The refusal of a request of a kind that is not sent to such upstreams."""
    return InvalidRequestError(
        f"{model} is served by an upstream: of requests to {upstream}, whose dialect is {dialect}, "
        "those of this kind are not translated.",
        param="model",
    )
