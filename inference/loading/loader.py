"""Opens the weights of a load spec: the one way in. Nothing is allocated for weights before the
model is known to be complete and to fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from inference.loading.described import DescribedModel, describe_model
from inference.loading.devices import (
    choose_device,
    choose_dtype,
    earlier_loads_on,
    free_memory_bytes,
    planned_kv_format,
    ranks_on_one_device,
    use_device,
)
from inference.loading.embedding_loader import OpenedEmbeddingModel, open_embedding_model
from inference.loading.formats import FP8_FILES
from inference.loading.host import triton_problem
from inference.loading.hub_config import read_embedding_config
from inference.loading.preflight import (
    PREFILL_TOKENS_PER_STEP,
    Kernels,
    MemoryNeed,
    Weight,
    check_fits,
    check_kv_memory,
    shortest_context_bytes,
    step_bytes,
)
from inference.loading.progress import OnProgress
from inference.loading.sources.files import ModelFiles
from inference.loading.sources.hub_sources import is_of_hub
from inference.loading.sources.sources import fetch_files, fetch_tokenizer
from inference.loading.tokenizer_files import directory_tokenizer, tokenizer_directory
from inference.loading.weights.opened_weights import OpenedWeights, Unquantized, open_unquantized
from inference.loading.weights.part_files import (
    layers_of_stage,
    rank_files,
    rank_shares,
    stage_files,
)
from inference.loading.weights.quantized_files import (
    QuantizedFiles,
    check_quantization,
    roles_of,
)
from inference.loading.weights.tensor_files import TensorFiles
from inference.models.config import ModelConfig
from inference.models.cuda.trials import has_expert_kernel
from inference.models.families.registry import family_of
from inference.models.layers.linear import LinearFactory
from inference.models.native.library import find_compiler
from inference.models.splits import LayerRange, RankShare, rank_config, rank_cuts, stage_config
from inference.models.weight_source import WeightSource
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import LoadProgress, LoadStage
from inference.settings.storage import HUGGINGFACE

COPY_MARGIN = 2
"""Copies that only make prompts faster are kept where they leave this many times their own size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    config: ModelConfig
    directory: Path
    weights: WeightSource
    tokenizer_dir: Path
    weight_bytes: int
    """As the files hold them, or as they are quantised while loading."""
    num_parameters: int
    cache_dir: Path
    need: MemoryNeed
    factory: LinearFactory
    files: TensorFiles
    weight_paths: tuple[Path, ...] = ()
    projector: Path | None = None
    left_out: str = ""
    unquantized: Unquantized | None = None
    shares: tuple[RankShare, ...] = ()
    """Set where several ranks share the model; only ``weights`` and ``need`` are one rank's."""
    layers: LayerRange | None = None
    """Set for one of several stages; only ``weights`` and ``need`` are the stage's."""

    @property
    def estimated_load_bytes(self) -> int:
        """All but KV. Complete once the model is built, when its copies are known."""
        return self.need.load_bytes + self.factory.copied_bytes

    def close(self) -> None:
        """Unmaps the files, once the model is built or given up."""
        self.files.close()


def open_model(
    spec: LoadSpec, cache_dir: Path, on_progress: OnProgress, *, rank: int = 0, stage: int = 0
) -> OpenedModel | OpenedEmbeddingModel:
    """Blocks while it downloads. ``on_progress`` is called from this thread only. ``rank`` or
    ``stage``: whose part of the weights. Raises ``LoadError``."""
    on_progress(LoadProgress(stage=LoadStage.STARTING, detail=spec.source))
    device = choose_device(spec, rank)
    use_device(device)
    planned_kv_format(spec, device, _is_native(spec, device))
    free_bytes = max(0, free_memory_bytes(device) - spec.promised_bytes)
    check_kv_memory(spec.kv_memory_bytes, free_bytes, str(device))
    files = fetch_files(spec, cache_dir, _free_for_files(spec, free_bytes), on_progress)
    on_progress(LoadProgress(stage=LoadStage.PREFLIGHT, detail=files.weights[0].name))
    if not files.is_gguf and (embedding := read_embedding_config(files.directory)) is not None:
        return open_embedding_model(spec, files, embedding, cache_dir, device, free_bytes)
    is_whole = spec.tensor_parallel == 1 and not spec.stages
    wants_predictor = spec.speculation == "mtp" or (spec.speculation == "auto" and is_whole)
    described = describe_model(files, device.type, wants_predictor=wants_predictor)
    tokenizer_dir = _tokenizer_dir(described, files, spec, cache_dir, on_progress)
    dense = whole = described.files
    wanted = check_quantization(dense, described.config, spec, device)
    if wanted is not None:
        whole = QuantizedFiles(dense, described.config, wanted, torch.get_num_threads())
        described = replace(described, files=whole)
    layers = layers_of_stage(spec, described.config, stage)
    if layers is not None:
        described = replace(described, files=stage_files(whole, layers))
    shares = rank_shares(described.config, whole, spec.tensor_parallel)
    if shares:
        cuts = rank_cuts(described.config, shares[rank])
        described = replace(described, files=rank_files(whole, cuts))
    own = _config_of_part(described.config, shares[rank] if shares else None, layers)
    need = _memory_need(spec, described, device, own)
    num_sharing = ranks_on_one_device(spec, device)
    free_bytes //= num_sharing
    if rank == 0 or device.type != "cpu":  # else the first has looked, and has begun to load
        check_fits(need, free_bytes, str(device), num_sharing=num_sharing)
    factory = _factory(spec, need, device, free_bytes)
    detail = "" if wanted is None else f"quantising to {wanted}"
    return OpenedModel(
        config=described.config,
        directory=files.directory,
        weights=OpenedWeights(described.files, factory, on_progress, detail),
        tokenizer_dir=tokenizer_dir,
        weight_bytes=sum(tensor.num_bytes for tensor in whole.values()),
        num_parameters=sum(math.prod(tensor.shape) for tensor in whole.values()),
        cache_dir=cache_dir,
        need=need,
        factory=factory,
        files=described.files,
        weight_paths=files.weights,
        projector=described.projector,
        left_out=described.left_out,
        unquantized=None
        if wanted is None or shares or stage
        else open_unquantized(
            dense, described.config, files.weights, device, choose_dtype(spec, device)
        ),
        shares=shares,
        layers=layers,
    )


def _free_for_files(spec: LoadSpec, free_bytes: int) -> int:
    """Stages add up their devices, those of other neurons by what the plan allots to them.
    ``free_bytes``: of the one device."""
    if not spec.stages:
        return free_bytes
    own = "" if spec.stage_of is None else spec.stages[spec.stage_of.index].neuron
    names = dict.fromkeys(stage.device for stage in spec.stages if stage.neuron == own)
    elsewhere_bytes = sum(stage.memory_bytes for stage in spec.stages if stage.neuron != own)
    return elsewhere_bytes + sum(free_memory_bytes(torch.device(name)) for name in names)


def _tokenizer_dir(
    described: DescribedModel,
    files: ModelFiles,
    spec: LoadSpec,
    cache_dir: Path,
    on_progress: OnProgress,
) -> Path:
    if described.gguf_header is not None:
        return tokenizer_directory(
            described.gguf_header,
            cache_dir,
            lambda repo: fetch_tokenizer(repo, cache_dir, on_progress),
            spec.source.partition(":")[0] if is_of_hub(spec.source) else HUGGINGFACE,
        )
    return files.directory if files.is_gguf else directory_tokenizer(files.directory, cache_dir)


def _config_of_part(
    config: ModelConfig, share: RankShare | None, layers: LayerRange | None
) -> ModelConfig:
    """Later stages have no logits and no images."""
    if share is not None:
        return rank_config(config, share)
    if layers is None:
        return config
    own = stage_config(config, layers)
    return own if layers.is_first else replace(own, vocab_size=0, vision=None)


def _memory_need(
    spec: LoadSpec, described: DescribedModel, device: torch.device, config: ModelConfig
) -> MemoryNeed:
    kernels = _kernels(spec, described.config, device)
    weight_bytes, copy_bytes = kernels.bytes_of(
        _weights(described), is_tied=described.config.tie_embeddings
    )
    kv_format = planned_kv_format(spec, device, kernels.is_native)
    kv_bytes = (
        None if spec.kv_memory_bytes is None else spec.kv_memory_bytes // spec.tensor_parallel
    )
    earlier = earlier_loads_on(spec, device)
    return MemoryNeed(
        weight_bytes=weight_bytes,
        kv_bytes=kv_bytes or shortest_context_bytes(config, kv_format),
        copy_bytes=copy_bytes,
        step_bytes=step_bytes(
            config,
            kernels.dense_bytes,
            prompt_rows=PREFILL_TOKENS_PER_STEP[device.type],
            decode_rows=spec.max_concurrent_sequences,
        ),
        image_bytes=config.kept_rows_bytes,
        correction_bytes=earlier.memory_correction_bytes if earlier else 0,
    )


def _weights(described: DescribedModel) -> Iterator[Weight]:
    """The transformers backend takes dense weights alone, and so do kernels for experts of fp8
    whose scales are not of blocks."""
    files, roles = described.files, roles_of(described.config)
    is_dense = family_of(described.config).uses_transformers
    for name, tensor in files.items():
        role = roles.get(name)
        is_unfit = role == "experts" and tensor.format == FP8_FILES and not tensor.has_fp8
        format = "dense" if is_dense or is_unfit else tensor.format
        yield Weight(role, format, math.prod(tensor.shape))


def _kernels(spec: LoadSpec, config: ModelConfig, device: torch.device) -> Kernels:
    is_card = device.type != "cpu"
    is_packed = spec.dtype != "float32" and not family_of(config).uses_transformers
    return Kernels(
        dense_bytes=choose_dtype(spec, device).itemsize,
        is_card=is_card,
        is_native=_is_native(spec, device),
        packs_experts=is_packed and has_expert_kernel(device),
        packs_projections=is_packed and triton_problem() is None,
    )


def _is_native(spec: LoadSpec, device: torch.device) -> bool:
    is_cpu_float = device.type == "cpu" and choose_dtype(spec, device) == torch.float32
    return is_cpu_float and spec.tensor_parallel == 1 and find_compiler() is not None


def _factory(
    spec: LoadSpec, need: MemoryNeed, device: torch.device, free_bytes: int
) -> LinearFactory:
    spare_bytes = free_bytes - need.required_bytes
    return LinearFactory(
        device,
        choose_dtype(spec, device),
        # All ranks have them or none: their collective operations must match.
        prefill_copies=spec.tensor_parallel == 1 and spare_bytes > COPY_MARGIN * need.copy_bytes,
        exact=spec.dtype == "float32",
        fp8=spec.quantization == "fp8",
    )
