"""Sampling: ``SamplingOptions`` of clients, ``SamplingParams`` of the engine."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class SamplingOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client's choices. ``None`` means "the model's default" (its generation_config, else the
    neutral value). Names are those of the OpenAI API, extensions those of vLLM. The dialect's
    parser refuses values out of range; nothing is clamped here."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repetition_window: int | None = None
    """The number of last tokens, prompt and output, that penalties cover; ``None``: all."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    top_logprobs: int | None = None
    """``None``: no logprobs. ``0``: only the sampled token's. ``n``: the n most likely as well."""
    prompt_logprobs: int | None = None
    stop_token_ids: list[int] = []
    min_tokens: int = 0
    ignore_eos: bool = False
    max_tokens: int | None = None


class Grammar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The output's grammar. ``text`` is in llguidance's JSON form (a list of lark or JSON-schema
    grammars); equal texts are compiled once.

    ``starts_after_token_id``: tokens up to and including the first such one are unconstrained (a
    thinking block before the answer). ``None``: the grammar holds from the first output token on.
    """

    text: str
    starts_after_token_id: int | None = None


class ThinkingLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits a thinking block: once it holds ``max_tokens`` tokens, the next one is
    ``end_token_id``. ``start_token_id`` opens the block, where ``follows_token_id`` is not ``None``
    only right after that token; ``None``: the prompt has opened it already."""

    max_tokens: int
    end_token_id: int
    start_token_id: int | None = None
    follows_token_id: int | None = None


DEFAULTS_OF_MODELS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "repetition_window",
    "presence_penalty",
    "frequency_penalty",
)

NEUTRAL_VALUES: Mapping[str, float] = {
    "top_k": 0,
    "min_p": 0,
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
}

SMALLEST_TEMPERATURE = 1e-5
"""Lower ones are greedy, as in vLLM: scores divided by them overflow float32."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The engine's sampling parameters of one sequence: every value is set.

    ``temperature`` under ``SMALLEST_TEMPERATURE`` is greedy. ``top_k`` 0, ``top_p`` 1.0, ``min_p``
    0.0, ``repetition_penalty`` 1.0 and the two other penalties 0.0 are off. ``stop_token_ids``
    includes the model's end-of-sequence ids unless ``ignore_eos`` was set. ``max_tokens`` counts
    output tokens.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_window: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    top_logprobs: int | None = None
    stop_token_ids: list[int] = []
    prompt_logprobs: int | None = None
    min_tokens: int = 0
    grammar: Grammar | None = None
    thinking_limit: ThinkingLimit | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature < SMALLEST_TEMPERATURE


class TokenLogprob(msgspec.Struct, frozen=True, omit_defaults=True):
    """Natural-log probabilities of one position, taken from the model's own distribution
    (before temperature, penalties and filters), as OpenAI and vLLM report them."""

    token_id: int
    logprob: float | None
    top: list[tuple[int, float]] = []
    rank: int | None = None
    """1 for the most likely token of the vocabulary; for prompts' tokens alone."""
