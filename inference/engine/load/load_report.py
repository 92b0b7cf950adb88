"""The report of a load of a model that generates."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.load.built_model import BuiltModel
from inference.engine.load.kv_memory import KVPlan
from inference.loading.gguf.tokenizer_files import tokenizer_warnings
from inference.loading.host import triton_problem
from inference.loading.image_processor import vision_input
from inference.loading.loader import OpenedModel
from inference.protocol.load_report import LoadReport


def load_warnings(device: torch.device) -> list[str]:
    """Returns, as text, what this host lacks to run its models as fast as they could."""
    problem = triton_problem() if device.type == "cuda" else None
    return [] if problem is None else [problem]


def sampling_warnings(unused_defaults: Sequence[str]) -> list[str]:
    return [
        f"the model's files recommend {default}, and no sampler here computes that: answers are "
        "sampled without it"
        for default in unused_defaults
    ]


def load_report(
    opened: OpenedModel,
    built: BuiltModel,
    plan: KVPlan,
    load_seconds: float,
    grammar_problem: str | None,
) -> LoadReport:
    config, trial = opened.config, built.trial
    draft = built.draft
    estimated_bytes = opened.estimated_load_bytes
    estimated_bytes += 0 if draft is None else draft.estimated_load_bytes
    beside_bytes = plan.cache_bytes + plan.adapter_bytes + config.kept_rows_bytes
    return LoadReport(
        architecture=config.architecture,
        device=str(built.model.device),
        dtype=str(built.model.dtype).removeprefix("torch."),
        num_parameters=opened.num_parameters,
        weight_bytes=opened.weight_bytes + (0 if draft is None else draft.weight_bytes),
        kv_bytes=plan.cache_bytes,
        num_kv_blocks=plan.num_blocks,
        kv_block_tokens=DEFAULT_BLOCK_TOKENS,
        kv_dtype=built.model.kv_format,
        context_tokens=plan.context_tokens,
        vocab_size=config.vocab_size,
        quantization="; ".join(filter(None, [opened.weights.report(), opened.left_out])),
        quality=built.quality,
        compiled=", ".join(
            filter(None, [built.execution, built.model.capture_in_words, built.drawing])
        ),
        load_seconds=load_seconds,
        tokenizer_dir=str(opened.tokenizer_dir),
        eos_token_ids=list(config.eos_token_ids),
        generation_defaults=dict(config.generation_defaults),
        grammar_problem=grammar_problem,
        warnings=[
            *load_warnings(built.model.device),
            *tokenizer_warnings(opened.tokenizer_dir),
            *sampling_warnings(config.unused_defaults),
        ],
        vision=vision_input(config),
        context_reason=plan.context_reason,
        prefill_speed=trial.prefill_speed,
        estimated_bytes=estimated_bytes + beside_bytes,
        actual_bytes=trial.load_bytes + beside_bytes,
        adapter_bytes=plan.adapter_bytes,
        process_bytes=trial.process_bytes,
        memory_correction_bytes=opened.need.correction_bytes + trial.load_bytes - estimated_bytes,
    )
