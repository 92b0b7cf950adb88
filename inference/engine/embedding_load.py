"""Loads an embedding model's engine, and turns its rows to tensors and vectors to bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import normalize

from inference.engine.embedding_engine import (
    EmbeddingEngine,
    Row,
)
from inference.engine.errors import DoesNotFitError, StepFault, WarmupError
from inference.engine.faults import recover
from inference.engine.load.trial import report_step
from inference.engine.waiting_queue import SchedulerLimits
from inference.loading.embedding_loader import OpenedEmbeddingModel
from inference.loading.progress import OnProgress
from inference.models.embedding import EmbeddingModel
from inference.protocol.engine import EmbedSequences, SequenceFailed
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import LoadProgress, LoadReport, LoadStage

WARMUP_STEPS = 8
"""After so many the size of a step has found the speed of the device."""
WARMUP_TOKENS = 64


def load_embedding_engine(
    spec: LoadSpec, opened: OpenedEmbeddingModel, on_progress: OnProgress
) -> tuple[EmbeddingEngine, EmbeddingModel]:
    """Raises ``ModelError``, ``EngineError``."""
    on_progress(LoadProgress(stage=LoadStage.WEIGHTS, total=opened.weight_bytes))
    model = EmbeddingModel(opened.directory, opened.config, opened.device, opened.dtype)
    on_progress(
        LoadProgress(stage=LoadStage.WEIGHTS, done=opened.weight_bytes, total=opened.weight_bytes)
    )
    if opened.device.type == "cuda":
        _run_largest_step(model, opened.step_tokens)
    engine = EmbeddingEngine(
        EmbeddingRunner(model),
        SchedulerLimits.of(spec, opened.step_tokens),
        max_input_tokens=opened.config.max_input_tokens,
        vocab_size=opened.config.vocab_size,
        dimensions=opened.config.dimensions,
    )
    _warm_up(engine, opened, on_progress)
    return engine, model


def embedding_report(
    opened: OpenedEmbeddingModel, model: EmbeddingModel, load_seconds: float
) -> LoadReport:
    config = opened.config
    return LoadReport(
        architecture=config.architecture,
        kind="embedding" if config.activation is None else "reranker",
        device=str(opened.device),
        dtype=str(opened.dtype).removeprefix("torch."),
        num_parameters=opened.num_parameters,
        weight_bytes=opened.weight_bytes,
        kv_bytes=0,
        num_kv_blocks=0,
        kv_block_tokens=0,
        context_tokens=config.max_input_tokens,
        vocab_size=config.vocab_size,
        quantization="dense",
        compiled=f"transformers {model.class_name}, {config.describe()}",
        load_seconds=load_seconds,
        tokenizer_dir=str(opened.tokenizer_dir),
        embedding_dimensions=config.hidden_size if config.activation is None else None,
        is_matryoshka=config.is_matryoshka,
        matryoshka_dimensions=list(config.matryoshka_dimensions),
    )


def _run_largest_step(model: EmbeddingModel, step_tokens: int) -> None:
    longest = torch.zeros(model.config.max_input_tokens, dtype=torch.int64)
    num_rows = max(1, step_tokens // len(longest))
    try:
        model.embed([longest] * num_rows)
    except torch.OutOfMemoryError:
        raise DoesNotFitError(
            f"{model.device} has no room for a step of {num_rows} inputs of {len(longest)} tokens "
            "beside the weights"
        ) from None


def _warm_up(
    engine: EmbeddingEngine, opened: OpenedEmbeddingModel, on_progress: OnProgress
) -> None:
    num_tokens = min(WARMUP_TOKENS, opened.config.max_input_tokens)
    for done in range(WARMUP_STEPS):
        report_step(on_progress, done, WARMUP_STEPS)
        prompt = [index % opened.config.vocab_size for index in range(num_tokens)]
        engine.submit(EmbedSequences(sequence_id=f"warm-up-{done}", prompts=[prompt]))
        for output in engine.step().outputs:
            if isinstance(output, SequenceFailed):
                raise WarmupError(f"{output.code}: {output.message}")


class EmbeddingRunner:
    def __init__(self, model: EmbeddingModel) -> None:
        self._model = model

    def embed(self, rows: Sequence[Row]) -> list[bytes | None]:
        """Returns each row's vector, float32 little-endian; ``None`` where it is not finite. Where
        a job asks for fewer dimensions, the leading ones are kept and normalized again."""
        prompts = [torch.tensor(row.token_ids, dtype=torch.int64) for row in rows]
        vectors = self._model.embed(prompts)
        are_numbers = vectors.isfinite().all(dim=1).tolist()
        return [
            _as_bytes(vector, row.job.dimensions) if is_number else None
            for row, vector, is_number in zip(rows, vectors, are_numbers, strict=True)
        ]

    def recover(self, error: Exception) -> StepFault:
        return recover(error, self._model.device.type)


def _as_bytes(vector: torch.Tensor, dimensions: int | None) -> bytes:
    if dimensions is not None and dimensions < len(vector):
        vector = normalize(vector[:dimensions], dim=0)
    as_bytes: bytes = vector.numpy().astype("<f4").tobytes()
    return as_bytes
