"""A mixture whose files hold packed experts, as a card computes it: the experts stay packed, and
rows come out as one expert after the other computes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from inference.loading.formats import format_of
from inference.loading.safetensors.packed_files import PackedFiles
from inference.loading.safetensors.tensors import SafetensorsFiles
from inference.loading.weights.experts import by_expert
from inference.loading.weights.opened_weights import OpenedWeights
from inference.models.cuda.experts import stacked_product
from inference.models.cuda.trials import ExpertTrials
from inference.models.families.quantization import Quantization
from inference.models.layer_configs import ExpertsConfig
from inference.models.layers.experts import Routes
from inference.models.layers.experts_loading import load_grouped, load_mixture
from inference.models.layers.linear import LinearFactory
from tests.cases import each_case
from tests.inference.models.cuda.random_experts import IN_FEATURES, OUT_FEATURES, random_expert
from tests.slow_cases import slow_but

pytestmark = pytest.mark.slow

HIDDEN, INNER, NUM_EXPERTS, NUM_ROWS = 64, 32, 4, 5
PREFIX = "model.layers.0.mlp"
CONFIG = ExpertsConfig(num_experts=NUM_EXPERTS, experts_per_token=2, intermediate_size=INNER)
BLOCK = 32, 32
CPU = torch.device("cpu")


def fp8(rows: int, columns: int) -> dict[str, torch.Tensor]:
    scales = torch.rand(-(-rows // BLOCK[0]), -(-columns // BLOCK[1])) / 2000 + 1e-4
    codes = (torch.randn(rows, columns) * 100).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scales}


def int8(rows: int, columns: int) -> dict[str, torch.Tensor]:
    codes = torch.randint(-128, 128, (rows, columns), dtype=torch.int8)
    return {"weight": codes, "weight_scale": torch.rand(rows, 1) / 1000}


def dense(rows: int, columns: int) -> dict[str, torch.Tensor]:
    return {"weight": torch.randn(rows, columns) * 0.1}


FORMATS = {
    "fp8": (fp8, fp8),
    "gates otherwise than the rest": (int8, fp8),
    "dense": (dense, dense),
}
"""The formats of gates, and of the other weights."""


def opened(folder: Path, formats: str, factory: LinearFactory) -> OpenedWeights:
    torch.manual_seed(1)
    gate, others = FORMATS[formats]
    tensors = {f"{PREFIX}.gate.weight": torch.randn(NUM_EXPERTS, HIDDEN)}
    for expert in range(NUM_EXPERTS):
        for name, kind, shape in (
            ("gate_proj", gate, (INNER, HIDDEN)),
            ("up_proj", others, (INNER, HIDDEN)),
            ("down_proj", others, (HIDDEN, INNER)),
        ):
            own = f"{PREFIX}.experts.{expert}.{name}"
            tensors |= {f"{own}.{key}": tensor for key, tensor in kind(*shape).items()}
    file = folder / "mixture.safetensors"
    save_file(tensors, file)
    files = PackedFiles(
        SafetensorsFiles([file], is_quantized=True), Quantization(method="fp8", block=BLOCK)
    )
    return OpenedWeights(by_expert(files), factory, lambda _: None)


def card_factory(device: torch.device, dtype: torch.dtype = torch.float32) -> LinearFactory:
    """Returns the factory of a card that has the kernel, which Triton's interpreter runs where
    there is none."""
    factory = LinearFactory(device, dtype)
    factory.expert_trials = ExpertTrials(device, dtype)
    return factory


@torch.inference_mode()
@pytest.mark.parametrize("formats", slow_but(FORMATS, "gates otherwise than the rest"))
def test_rows_are_as_one_expert_after_the_other_has_them(
    device: torch.device, tmp_path: Path, formats: str
) -> None:
    x = torch.randn(NUM_ROWS, HIDDEN, generator=torch.Generator().manual_seed(2))
    exact = opened(tmp_path, formats, LinearFactory(CPU, torch.float32, exact=True))
    loop = load_mixture(CONFIG, exact, PREFIX)
    routes = loop.routes(x)
    wanted = loop.experts.prefill(x, routes)
    experts = load_grouped(CONFIG, opened(tmp_path, formats, card_factory(device)), PREFIX)
    on_device = Routes(routes.experts.to(device), routes.weights.to(device))
    found = experts.decode(x.to(device), on_device).cpu()
    # fp8 that is multiplied out on the way in is rounded to bfloat16.
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 2**-7


def test_the_report_names_the_format_and_the_kernel(device: torch.device, tmp_path: Path) -> None:
    weights = opened(tmp_path, "gates otherwise than the rest", card_factory(device))
    load_grouped(CONFIG, weights, PREFIX)
    int8_words, fp8_words = sorted(weights.report().split("; "))
    assert int8_words.startswith("4 x INT8 8-bit codes in a Triton kernel for experts")
    assert fp8_words.startswith("8 x F8_E4M3 fp8 codes in a Triton kernel for experts")


def test_a_kernel_that_fails_leaves_dense_experts_and_reports_it(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr("inference.models.cuda.experts.stacked_product", refuse)
    weights = opened(tmp_path, "fp8", card_factory(device))
    load_grouped(CONFIG, weights, PREFIX)
    assert weights.report().endswith("dense in torch's grouped product: Triton: RuntimeError")


KIND_OF = {
    "Q4_1": "Q4",
    "Q5_0": "Q5",
    "Q5_1": "Q5 with minimums",
    "Q8_0": "Q8",
    "MXFP4": "MXFP4",
    "F8_E4M3": "fp8",
} | {f"Q{bits}_K": f"Q{bits}_K" for bits in (2, 3, 4, 5, 6)}


@each_case("format", KIND_OF)
def test_the_memory_estimate_is_what_packed_experts_take(device: torch.device, format: str) -> None:
    expert = random_expert(KIND_OF[format], 0)
    product = stacked_product(lambda _: expert, 2, device, torch.bfloat16)
    row_units = 2 * 4 * OUT_FEATURES
    taken = (product.num_bytes - row_units) / (2 * OUT_FEATURES * IN_FEATURES)
    assert taken == (format_of(format).card or 0) / 8
