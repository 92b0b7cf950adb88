"""Which drafts a loaded model gets, and in words why none."""

from __future__ import annotations

from inference.engine.speculation.speculator import (
    DEFAULT_DRAFT_TOKENS,
    MOST_DRAFT_TOKENS,
    LookupSpeculator,
    Speculator,
)
from inference.loading.draft_check import takes_draft_model
from inference.models.config import ModelConfig
from inference.protocol.load import LoadSpec

NO_PREDICTOR = "the model's files bring no layer of multi-token prediction that is known"


def drafts_problem(spec: LoadSpec, config: ModelConfig) -> str:
    """Why a model of this config has no drafts, though they were asked for; empty: it has."""
    if spec.speculation == "draft_model" and not takes_draft_model(config):
        return "blocks that this model's sliding window has passed are not there to be drafted from"
    if spec.speculation == "mtp" and not config.has_predictor:
        return NO_PREDICTOR
    return ""


def num_draft_tokens(spec: LoadSpec) -> int:
    """The most drafts of one sequence in one step."""
    return min(spec.max_draft_tokens or DEFAULT_DRAFT_TOKENS, MOST_DRAFT_TOKENS)


def choose_speculator(spec: LoadSpec, config: ModelConfig) -> Speculator | None:
    """One that needs no model; those that do, and the choice among them, are made with the
    engine."""
    if spec.speculation not in ("prompt_lookup", "auto"):
        return None
    return LookupSpeculator(num_draft_tokens(spec))


def speculation_in_words(spec: LoadSpec, config: ModelConfig, draft_weight_bytes: int = 0) -> str:
    """Describes speculation for the load report; empty where it is off."""
    if spec.speculation == "off":
        return ""
    if problem := drafts_problem(spec, config):
        return f"none: {problem}"
    origin = "prompt lookup"
    if spec.speculation == "draft_model":
        origin = f"draft model {spec.draft_model} ({draft_weight_bytes / 1e6:,.1f} MB)"
    if spec.speculation == "mtp":
        origin = "multi-token prediction"
    limit = f"up to {num_draft_tokens(spec)} tokens a step"
    if spec.speculation == "auto":
        return _automatic_in_words(spec, config, limit)
    return f"{origin}, {limit}"


def _automatic_in_words(spec: LoadSpec, config: ModelConfig, limit: str) -> str:
    if config.has_predictor:
        return f"auto: prompt lookup or multi-token prediction, whichever pays, {limit}"
    is_whole = spec.tensor_parallel == 1 and not spec.stages
    problem = NO_PREDICTOR if is_whole else "a divided model has no multi-token prediction"
    return f"auto: prompt lookup where it pays, {limit}; {problem}"
