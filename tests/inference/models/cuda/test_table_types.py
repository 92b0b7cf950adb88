"""GGUF's types whose codes are places in a table stay packed on a card, in as much memory as a load
plans with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType

from benchmarks.weights.random_blocks import random_blocks
from inference.loading.formats import FORMATS, GGUF_FORMATS
from inference.loading.gguf import quants
from inference.models.cuda.packed import PackedLinear
from inference.models.cuda.trials import LARGEST_ERROR, PackedTrials
from inference.models.weights.stored import CodebookWeight
from tests.slow_cases import slow_but

pytestmark = pytest.mark.slow

OUT_FEATURES, IN_FEATURES = 16, 1024
TABLE_TYPES = [type.name for type in GGUF_FORMATS if type.is_table]


@pytest.mark.parametrize("name", slow_but(TABLE_TYPES, "IQ3_S", "IQ4_XS", "NVFP4"))
def test_it_is_multiplied_packed(device: torch.device, name: str) -> None:
    type = GGMLQuantizationType[name]
    blocks = random_blocks(np.random.default_rng(3), type, (OUT_FEATURES, IN_FEATURES), 0.1)
    weight = quants.stored(blocks, type)
    assert isinstance(weight, CodebookWeight)
    assert PackedTrials(device, torch.float32).reason_against(weight) is None
    linear = PackedLinear(weight, device, torch.float32)
    x = torch.randn(5, IN_FEATURES, generator=torch.Generator().manual_seed(4))
    wanted = x @ weight.dequantize().T
    for phase in (linear.decode, linear.prefill):
        error = (phase(x.to(device)).cpu() - wanted).abs().max() / wanted.abs().max()
        assert float(error) < LARGEST_ERROR / 10
    assert linear.packed.scales is not None
    taken = linear.packed.words.nbytes + linear.packed.scales.nbytes
    assert taken == (FORMATS[name].card or 0) / 8 * OUT_FEATURES * IN_FEATURES
