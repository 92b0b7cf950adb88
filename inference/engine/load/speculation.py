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


def drafts_problem(spec: LoadSpec, config: ModelConfig) -> str:
    """Why a model of this config has no drafts, though they were asked for; empty: it has."""
    if spec.speculation == "draft_model" and not takes_draft_model(config):
        return "blocks that this model's sliding window has passed are not there to be drafted from"
    if spec.speculation == "mtp" and not config.has_predictor:
        return (
            "the model's files bring no layer of multi-token prediction that is known, or the "
            "native decoder runs it, which has none"
        )
    return ""


def num_draft_tokens(spec: LoadSpec) -> int:
    """The most drafts of one sequence in one step."""
    return min(spec.max_draft_tokens or DEFAULT_DRAFT_TOKENS, MOST_DRAFT_TOKENS)


def choose_speculator(spec: LoadSpec, config: ModelConfig) -> Speculator | None:
    """One that needs no model; those that do are made with the engine."""
    if spec.speculation != "prompt_lookup" or drafts_problem(spec, config):
        return None
    return LookupSpeculator(num_draft_tokens(spec))


def speculation_in_words(spec: LoadSpec, config: ModelConfig, draft_weight_bytes: int = 0) -> str:
    """For the load report; empty where nobody asked."""
    if spec.speculation == "off":
        return ""
    if problem := drafts_problem(spec, config):
        return f"none: {problem}"
    origin = "prompt lookup"
    if spec.speculation == "draft_model":
        origin = f"draft model {spec.draft_model} ({draft_weight_bytes / 1e6:,.1f} MB)"
    if spec.speculation == "mtp":
        origin = "multi-token prediction"
    return f"{origin}, up to {num_draft_tokens(spec)} tokens a step"
