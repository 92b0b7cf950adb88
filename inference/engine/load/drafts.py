"""Which drafts a loaded model gets, and in words why none. A draft model is opened and compared
with the one that answers before either is built.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.speculation.prompt_lookup import LookupSpeculator
from inference.engine.speculation.speculator import (
    DEFAULT_DRAFT_TOKENS,
    MOST_DRAFT_TOKENS,
    Speculator,
)
from inference.loading.described import (
    check_draft_config,
    check_shared_vocabulary,
    takes_draft_model,
)
from inference.loading.devices import wanted_kv_format
from inference.loading.embedding_loader import OpenedEmbeddingModel
from inference.loading.loader import OpenedModel, open_model
from inference.loading.progress import OnProgress
from inference.models.backend import AnyModel
from inference.models.config import ModelConfig
from inference.models.kv_format import kv_bytes_per_block
from inference.models.registry import build_fastest_model
from inference.protocol.load import LoadSpec, draft_spec
from inference.protocol.load_errors import BadSourceError

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


def choose_speculator(spec: LoadSpec) -> Speculator | None:
    """Returns the speculator that needs no model. Those that do, and the choice among them, are
    made with the engine."""
    if spec.speculation not in ("prompt_lookup", "auto"):
        return None
    return LookupSpeculator(num_draft_tokens(spec))


def speculation_in_words(spec: LoadSpec, config: ModelConfig, draft_weight_bytes: int = 0) -> str:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltDraftModel:
    model: AnyModel
    num_positions: int
    """Longer texts it does not read."""
    weight_bytes: int
    estimated_load_bytes: int

    @property
    def block_bytes(self) -> int:
        """Bytes of its keys and values in each of the answering model's blocks."""
        return kv_bytes_per_block(self.model.config, DEFAULT_BLOCK_TOKENS, self.model.kv_format)


def open_draft_model(
    spec: LoadSpec,
    answering: OpenedModel,
    cache_dir: Path,
    on_progress: OnProgress,
) -> OpenedModel | None:
    """``None``: the spec has none, or the model that answers cannot use one. Nothing of its weights
    is read. Raises ``LoadError``."""
    drafting = draft_spec(spec)
    if drafting is None or drafts_problem(spec, answering.config):
        return None
    promised_bytes = spec.promised_bytes + answering.need.required_bytes
    drafting = msgspec.structs.replace(drafting, promised_bytes=promised_bytes)
    opened = open_model(drafting, cache_dir, on_progress)
    if isinstance(opened, OpenedEmbeddingModel):
        raise BadSourceError(f"the draft model {drafting.source} makes embeddings, not texts")
    try:
        check_draft_config(opened.config, drafting.source)
        check_shared_vocabulary(answering.tokenizer_dir, opened.tokenizer_dir, drafting.source)
    except Exception:
        opened.close()
        raise
    return replace(opened, config=replace(opened.config, vision=None))


def build_draft_model(
    spec: LoadSpec, opened: OpenedModel, context_tokens: int, native_cache_dir: Path
) -> BuiltDraftModel:
    """``context_tokens``: of the model that answers."""
    num_positions = min(context_tokens, opened.config.max_positions)
    model, _ = build_fastest_model(
        opened.config, opened.weights, num_positions, native_cache_dir, wanted_kv_format(spec)
    )
    return BuiltDraftModel(
        model=model,
        num_positions=num_positions,
        weight_bytes=opened.weight_bytes,
        estimated_load_bytes=opened.estimated_load_bytes,
    )
