"""Stages one after another compute what the whole model computes: to the bit in the native decoder,
within rounding on torch's operators."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from inference.loading.weights.tensor_files import TensorFiles
from inference.models.adapter import AdapterWeights, LowRank, adaptable_shapes
from inference.models.backend import AnyModel
from inference.models.config import ModelConfig
from inference.models.decoder import DecoderLayers, DecoderModel
from inference.models.errors import UnsplittableError, UnsupportedAdapterError
from inference.models.kv_format import KVFormat
from inference.models.native.model import NativeModel
from inference.models.registry import build_model, unsupported_reason
from inference.models.splits import LayerRange, check_ranges, stage_config
from inference.models.stage import adapter_of_stage, as_first_stage, step_of_stage
from inference.models.step_input import StepInput
from inference.models.weight_source import ForwardedWeights
from tests.cases import each_case
from tests.inference.models.ranks import MemoryFiles, random_tensors, weights_of
from tests.inference.models.steps import images_of, logits_of, step_of
from tests.inference.models.test_ranks import PackedFiles
from tests.inference.models.tiny_configs import ALL_FACTS, config_of

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-4
ACROSS_KERNELS = 1e-3
"""The native decoder and torch sum in other orders."""
NATIVE = ["llama", "gemma2", "smollm3", "olmo3", "cohere2", "qwen2_moe", "qwen3_next", "lfm2_moe"]
"""Dense, windows, layers without rotation, parallel, mixtures and hybrids."""


CONTEXT_TOKENS, BLOCK_TOKENS = 96, 32


def ranges_of(*ends: int) -> list[LayerRange]:
    return [LayerRange(first, last) for first, last in zip([0, *ends], ends, strict=False)]


def even_ranges(config: ModelConfig, num_stages: int) -> list[LayerRange]:
    return ranges_of(*(config.num_layers * (i + 1) // num_stages for i in range(num_stages)))


def whole(
    config: ModelConfig,
    files: TensorFiles,
    library: ctypes.CDLL | None = None,
    kv_format: KVFormat = "fp32",
) -> AnyModel:
    """``library``: of the native decoder; ``None``: on torch's operators."""
    weights = weights_of(files)
    if library is None:
        return build_model(config, weights, CONTEXT_TOKENS, kv_format)
    return NativeModel(library, config, weights, CONTEXT_TOKENS, kv_format)


class Staged:
    """Stages in this process, each with its own storage."""

    def __init__(
        self,
        config: ModelConfig,
        files: TensorFiles,
        ranges: Sequence[LayerRange],
        libraries: Sequence[ctypes.CDLL | None],
        kv_format: KVFormat = "fp32",
    ) -> None:
        """``libraries``: of each stage, as of ``whole``."""
        check_ranges(config, ranges)
        self.config, self.ranges = config, ranges
        self.stages: list[Any] = []
        for layers, library in zip(ranges, libraries, strict=True):
            weights = ForwardedWeights(weights_of(files), layers.whole_name)
            given = stage_config(config, layers), weights, CONTEXT_TOKENS, kv_format
            if library is not None:
                stage: Any = NativeModel(library, *given, has_outer=layers.is_first)
            else:
                stage = (DecoderModel if layers.is_first else DecoderLayers)(*given)
            self.stages.append(stage if self.stages else as_first_stage(stage))

    def new_kv(self, *sizes: int) -> list[Any]:
        return [stage.new_kv(*sizes) for stage in self.stages]

    def prepare_adapter(self, weights: AdapterWeights) -> tuple[Any, ...]:
        parts = (adapter_of_stage(weights, layers) for layers in self.ranges)
        return tuple(
            None if part is None else stage.prepare_adapter(part)
            for stage, part in zip(self.stages, parts, strict=True)
        )

    def forward(self, step: StepInput, kv: list[Any]) -> torch.Tensor:
        last, hidden = len(self.stages) - 1, None
        for index, stage in enumerate(self.stages):
            own = step_of_stage(step, self.ranges[index], index, is_last=index == last)
            if hidden is not None:
                hidden = hidden.to(stage.device, stage.dtype)
            hidden = stage.forward_rows(own, hidden, kv[index])
        return self.stages[0].head_logits(hidden)


def check(found: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float = 0.0) -> None:
    pairs = zip(found, expected, strict=True)
    for ours, right in ((a.log_softmax(-1), b.log_softmax(-1)) for a, b in pairs):
        torch.testing.assert_close(ours, right, atol=tolerance, rtol=0)
    assert expected[0].std() > 0.1, "logits that differ"


@each_case("name", ALL_FACTS)
def test_every_family_on_torch(name: str) -> None:
    config = config_of(name)
    files = MemoryFiles(random_tensors(config))
    expected = logits_of(whole(config, files))
    num_stages = min(3, config.num_layers)
    model = Staged(config, files, even_ranges(config, num_stages), [None] * num_stages)
    check(logits_of(model), expected, TOLERANCE)


@each_case("name", NATIVE)
def test_native_stages_are_exact(name: str, library: ctypes.CDLL) -> None:
    config = config_of(name)
    assert unsupported_reason(config, library) is None
    files = PackedFiles(random_tensors(config), (4, 8))
    num_stages = min(3, config.num_layers)
    for kv_format in ("fp32", "int8"):
        expected = logits_of(whole(config, files, library, kv_format))
        ranges = even_ranges(config, num_stages)
        model = Staged(config, files, ranges, [library] * num_stages, kv_format)
        assert model.stages[0].sampler is not None
        check(logits_of(model), expected)


def test_blocks_of_rows_are_exact(library: ctypes.CDLL) -> None:
    config = config_of("qwen3_5")
    files = MemoryFiles(random_tensors(config))
    torch.set_num_threads(2)
    tokens = [7 * i % config.vocab_size for i in range(90)]
    step = StepInput.of_sequence(tokens, BLOCK_TOKENS, logit_rows=slice(40, None))
    parts = Staged(config, files, ranges_of(1, 3, 4), [library] * 3)
    models = whole(config, files, library), parts
    found = [model.forward(step, model.new_kv(3, BLOCK_TOKENS, 2)) for model in models]
    torch.set_num_threads(1)
    assert torch.equal(*found)
    images = {"images": images_of(config, num_deep=2)}  # of stages that do not attend
    check(logits_of(parts, first=images), logits_of(models[0], first=images))


def test_native_stages_beside_torchs_and_ranges_that_are_not_the_models(
    library: ctypes.CDLL,
) -> None:
    config = config_of("qwen3_next")
    files = MemoryFiles(random_tensors(config))
    expected = logits_of(whole(config, files))
    for libraries in ([library, None], [None, library]):
        model = Staged(config, files, even_ranges(config, 2), libraries)
        check(logits_of(model), expected, ACROSS_KERNELS)
    wrong = [ranges_of(1), ranges_of(1, 3), [LayerRange(1, 2)], []]
    wrong += [[LayerRange(0, 2), LayerRange(*other)] for other in ((1, 2), (2, 2))]
    for ranges in wrong:
        with pytest.raises(UnsplittableError, match="each once and in order"):
            check_ranges(config_of("llama"), ranges)


@each_case("is_native", [True, False], ids=["native", "torch"])
def test_images(library: ctypes.CDLL, is_native: bool) -> None:
    text = ALL_FACTS["qwen3_vl"]["text_config"] | {"num_hidden_layers": 4}
    config = config_of("qwen3_vl", text_config=text)
    files, images = MemoryFiles(random_tensors(config)), {"images": images_of(config, 2)}
    kind = library if is_native else None
    expected = logits_of(whole(config, files, kind), first=images)
    assert (expected[0] - logits_of(whole(config, files, kind))[0]).abs().max() > 0.1
    for ends in ((1, 4), (2, 4), (1, 2, 4)):
        model = Staged(config, files, ranges_of(*ends), [kind] * len(ends))
        check(logits_of(model, first=images), expected, 0.0 if is_native else TOLERANCE)


def adapter(config: ModelConfig, *layers: int) -> AdapterWeights:
    generator, found = torch.Generator().manual_seed(4), {}
    for name, (outputs, inputs) in adaptable_shapes(config).items():
        if int(name.split(".")[2]) in layers:
            down = torch.randn(2, inputs, generator=generator)
            found[name] = LowRank(down, torch.randn(outputs, 2, generator=generator), 0.1)
    return AdapterWeights(found)


@each_case("is_native", [True, False], ids=["native", "torch"])
def test_adapters(library: ctypes.CDLL, is_native: bool) -> None:
    config = config_of("qwen3_5")
    files = MemoryFiles(random_tensors(config))
    kind = library if is_native else None
    model, stages = whole(config, files, kind), Staged(config, files, ranges_of(2, 4), [kind] * 2)
    queries = (range(12), 0, [0]), (range(12, 20), 0, [1])
    slots = [0, 0], [1, 2]
    step = step_of(*queries, block_tokens=BLOCK_TOKENS, num_decodes=0, state_slots=slots)
    plain = model.forward(step, model.new_kv(2, BLOCK_TOKENS, 3))
    for layers in ((0, 1, 2, 3), (3,)):
        found = []
        for one in (model, stages):
            adapters = (one.prepare_adapter(adapter(config, *layers)), None)
            kv = one.new_kv(2, BLOCK_TOKENS, 3)
            found.append(one.forward(replace(step, adapters=adapters), kv))
        check([found[1]], [found[0]], 0.0 if is_native else TOLERANCE)
        assert not torch.allclose(found[0][:12], plain[:12], atol=0.01)
        torch.testing.assert_close(found[1][12:], plain[12:], atol=TOLERANCE, rtol=0)
    config = config_of("llama")
    mixed = Staged(config, MemoryFiles(random_tensors(config)), ranges_of(1, 2), [library, None])
    for name in ("lm_head", "model.layers.1.self_attn.rotary"):
        odd = AdapterWeights({name: LowRank(torch.zeros(1, 64), torch.zeros(96, 1), 1.0)})
        with pytest.raises(UnsupportedAdapterError, match="is not adapted"):
            mixed.prepare_adapter(odd)
