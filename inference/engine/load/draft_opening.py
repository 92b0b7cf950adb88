"""The model that makes drafts for another: opened and compared with it before either is built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.load.speculation import drafts_problem
from inference.loading.devices import wanted_kv_format
from inference.loading.draft_check import check_draft_config, check_shared_vocabulary
from inference.loading.embedding.embedding_loader import OpenedEmbeddingModel
from inference.loading.loader import OpenedModel, open_model
from inference.loading.progress import OnProgress
from inference.models.backend import AnyModel
from inference.models.cache.kv_format import kv_bytes_per_block
from inference.models.registry import build_fastest_model
from inference.protocol.load import LoadSpec, draft_spec
from inference.protocol.load_errors import BadSourceError


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltDraftModel:
    model: AnyModel
    num_positions: int
    """Longer texts it does not read."""
    source: str
    weight_bytes: int
    estimated_load_bytes: int

    @property
    def block_bytes(self) -> int:
        """What its keys and values take of each of the answering model's blocks."""
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
        source=spec.draft_model or "",
        weight_bytes=opened.weight_bytes,
        estimated_load_bytes=opened.estimated_load_bytes,
    )
