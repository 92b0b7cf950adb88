"""How a request is sampled: by the client's choice, else the model's own defaults. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from inference.neuron.errors import RequestRefusedError, bad_token_id
from inference.protocol.events import UsedSampling
from inference.protocol.load import LoadReport
from inference.protocol.sampling import DEFAULTS_OF_MODELS, SamplingOptions, SamplingParams


def resolve_sampling(
    options: SamplingOptions, max_tokens: int, report: LoadReport
) -> SamplingParams:
    """The client's choice, else the model's generation_config, else the neutral value."""
    chosen: dict[str, Any] = {}
    for name in DEFAULTS_OF_MODELS:
        value = getattr(options, name)
        if value is None:
            value = report.generation_defaults.get(name)
        if value is not None:
            chosen[name] = value
    stop_ids = [] if options.ignore_eos else report.eos_token_ids
    _check_ids_in_vocabulary(options, report.vocab_size)
    return SamplingParams(
        **chosen,
        max_tokens=max_tokens,
        logit_bias=options.logit_bias or {},
        seed=options.seed,
        top_logprobs=options.top_logprobs,
        prompt_logprobs=options.prompt_logprobs,
        stop_token_ids=list(dict.fromkeys([*stop_ids, *options.stop_token_ids])),
        min_tokens=options.min_tokens,
    )


def used_sampling(params: SamplingParams) -> UsedSampling:
    return UsedSampling(
        temperature=params.temperature,
        top_p=params.top_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
    )


def _check_ids_in_vocabulary(options: SamplingOptions, vocab_size: int) -> None:
    for param, token_ids in (
        ("logit_bias", options.logit_bias or ()),
        ("stop_token_ids", options.stop_token_ids),
    ):
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                failure = bad_token_id(token_id, vocab_size)
                raise RequestRefusedError(msgspec.structs.replace(failure, param=param))
