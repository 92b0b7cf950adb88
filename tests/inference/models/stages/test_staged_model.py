"""Stages one after another compute what the whole model computes: to the bit in the native decoder,
within rounding on torch's operators."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
import torch

from inference.models.adapter import AdapterWeights, LowRank, adaptable_shapes
from inference.models.config import ModelConfig
from inference.models.errors import UnsplittableError, UnsupportedAdapterError
from inference.models.registry import unsupported_reason
from inference.models.stages.layer_range import LayerRange, check_ranges
from inference.models.step_input import ImageEmbeddings, StepImages, StepInput
from tests.cases import each_case
from tests.inference.models.parallel.ranks import MemoryFiles, random_tensors
from tests.inference.models.parallel.test_rank_forward import PackedFiles
from tests.inference.models.parallel.tiny_configs import ALL_FACTS, config_of
from tests.inference.models.stages.stages import (
    BLOCK_TOKENS,
    even_ranges,
    logits_of,
    ranges_of,
    staged,
    whole,
)

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-4
ACROSS_KERNELS = 1e-3
"""The native decoder and torch sum in other orders."""
NATIVE = ["llama", "gemma2", "smollm3", "olmo3", "cohere2", "qwen2_moe", "qwen3_next", "lfm2_moe"]
"""Dense, windows, layers without rotation, parallel, mixtures and hybrids."""


def check(
    found: list[torch.Tensor],
    expected: list[torch.Tensor],
    *,
    exactly: bool,
    tolerance: float = TOLERANCE,
) -> None:
    tolerance = 0 if exactly else tolerance
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
    model = staged(config, files, even_ranges(config, num_stages), [None] * num_stages)
    check(logits_of(model), expected, exactly=False)


@each_case("name", NATIVE)
def test_native_stages_are_exact(name: str, library: ctypes.CDLL) -> None:
    config = config_of(name)
    assert unsupported_reason(config, library) is None
    files = PackedFiles(random_tensors(config), (4, 8))
    num_stages = min(3, config.num_layers)
    for kv_format in ("fp32", "int8"):
        expected = logits_of(whole(config, files, library, kv_format))
        ranges = even_ranges(config, num_stages)
        model = staged(config, files, ranges, [library] * num_stages, kv_format)
        assert model.first.sampler is not None
        check(logits_of(model), expected, exactly=True)


def test_blocks_of_rows_are_exact(library: ctypes.CDLL) -> None:
    config = config_of("qwen3_5")
    files = MemoryFiles(random_tensors(config))
    torch.set_num_threads(2)
    step = StepInput.of_sequence(
        [7 * i % config.vocab_size for i in range(90)], BLOCK_TOKENS, logit_rows=slice(40, None)
    )
    found = []
    for model in (
        whole(config, files, library),
        staged(config, files, ranges_of(1, 3, 4), [library] * 3),
    ):
        found.append(model.forward(step, model.new_kv(3, BLOCK_TOKENS, 2)))
    torch.set_num_threads(1)
    assert torch.equal(*found)


@each_case("is_native_first", [True, False])
def test_native_stages_beside_torchs(library: ctypes.CDLL, is_native_first: bool) -> None:
    config = config_of("qwen3_next")
    files = MemoryFiles(random_tensors(config))
    libraries = [library, None] if is_native_first else [None, library]
    model = staged(config, files, even_ranges(config, 2), libraries)
    expected = logits_of(whole(config, files))
    check(logits_of(model), expected, exactly=False, tolerance=ACROSS_KERNELS)


def images_of(config: ModelConfig, num_deep: int) -> StepImages:
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randn(4, config.hidden_size, generator=generator) for _ in range(1 + num_deep)]
    return StepImages(
        rotary=torch.arange(32).repeat(3, 1).index_fill(1, torch.tensor([3, 4]), 2),
        row_ids=torch.tensor([2, 3, 4, 5]),
        rows=ImageEmbeddings(rows[0], tuple(rows[1:])),
    )


@each_case("is_native", [True, False], ids=["native", "torch"])
def test_images(library: ctypes.CDLL, is_native: bool) -> None:
    text = ALL_FACTS["qwen3_vl"]["text_config"] | {"num_hidden_layers": 4}
    config = config_of("qwen3_vl", text_config=text)
    files, images = MemoryFiles(random_tensors(config)), images_of(config, num_deep=2)
    kind = library if is_native else None
    expected = logits_of(whole(config, files, kind), images)
    assert (expected[0] - logits_of(whole(config, files, kind))[0]).abs().max() > 0.1
    for ends in ((1, 4), (2, 4), (1, 2, 4)):
        model = staged(config, files, ranges_of(*ends), [kind] * len(ends))
        check(logits_of(model, images), expected, exactly=is_native)


def test_images_of_stages_that_do_not_attend(library: ctypes.CDLL) -> None:
    config = config_of("qwen3_5")
    files, images = MemoryFiles(random_tensors(config)), images_of(config, num_deep=2)
    expected = logits_of(whole(config, files, library), images)
    model = staged(config, files, ranges_of(1, 3, 4), [library] * 3)
    check(logits_of(model, images), expected, exactly=True)


def adapter(config: ModelConfig, *layers: int) -> AdapterWeights:
    generator = torch.Generator().manual_seed(4)

    def low_rank(out_features: int, in_features: int) -> LowRank:
        down = torch.randn(2, in_features, generator=generator)
        return LowRank(down, torch.randn(out_features, 2, generator=generator), 0.1)

    return AdapterWeights(
        {
            name: low_rank(*shape)
            for name, shape in adaptable_shapes(config).items()
            if int(name.split(".")[2]) in layers
        }
    )


@each_case("is_native", [True, False], ids=["native", "torch"])
def test_adapters(library: ctypes.CDLL, is_native: bool) -> None:
    config = config_of("qwen3_5")
    files = MemoryFiles(random_tensors(config))
    kind = library if is_native else None
    model, stages = whole(config, files, kind), staged(config, files, ranges_of(2, 4), [kind] * 2)
    step = StepInput.of_queries(
        range(20),
        [0, 0],
        [12, 8],
        StepInput.of_sequence(range(40), BLOCK_TOKENS).block_table.reshape(2, 1),
        BLOCK_TOKENS,
        num_decodes=0,
        state_slots=([0, 0], [1, 2]),
    )
    plain = model.forward(step, model.new_kv(2, BLOCK_TOKENS, 3))
    for layers in ((0, 1, 2, 3), (3,)):
        found = []
        for one in (model, stages):
            adapters = (one.prepare_adapter(adapter(config, *layers)), None)
            kv = one.new_kv(2, BLOCK_TOKENS, 3)
            found.append(one.forward(replace(step, adapters=adapters), kv))
        check([found[1]], [found[0]], exactly=is_native)
        assert not torch.allclose(found[0][:12], plain[:12], atol=0.01)
        torch.testing.assert_close(found[1][12:], plain[12:], atol=TOLERANCE, rtol=0)


def test_adapters_of_what_no_stage_adapts_are_refused(library: ctypes.CDLL) -> None:
    config = config_of("llama")
    model = staged(config, MemoryFiles(random_tensors(config)), ranges_of(1, 2), [library, None])
    for name in ("lm_head", "model.layers.1.self_attn.rotary"):
        odd = AdapterWeights({name: LowRank(torch.zeros(1, 64), torch.zeros(96, 1), 1.0)})
        with pytest.raises(UnsupportedAdapterError, match="is not adapted"):
            model.prepare_adapter(odd)


@each_case(
    "ranges",
    [
        ranges_of(1),
        ranges_of(1, 3),
        [LayerRange(1, 2)],
        [LayerRange(0, 2), LayerRange(1, 2)],
        [LayerRange(0, 2), LayerRange(2, 2)],
        [],
    ],
    ids=str,
)
def test_ranges_that_are_not_the_models_layers(ranges: list[LayerRange]) -> None:
    with pytest.raises(UnsplittableError, match="each once and in order"):
        check_ranges(config_of("llama"), ranges)
