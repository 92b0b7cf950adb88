"""Rows sorted by expert times their experts' weights, in every format that a file may hold; and a
mixture of such experts as a card computes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from inference.loading.formats import format_of
from inference.loading.weights.named_files import by_expert
from inference.loading.weights.opened_weights import OpenedWeights
from inference.loading.weights.packed_files import PackedFiles
from inference.loading.weights.tensor_files import SafetensorsFiles
from inference.models.cuda.experts import (
    UnlikeExpertsError,
    chosen_tile_rows,
    most_tiles,
    mxfp4_codes,
    stacked_product,
)
from inference.models.cuda.packed import TILES
from inference.models.cuda.packed_layout import pack_scales
from inference.models.cuda.trials import ExpertTrials
from inference.models.families.quantization import Quantization
from inference.models.layer_configs import ExpertsConfig
from inference.models.layers.experts import Routes, load_grouped, load_mixture
from inference.models.layers.linear import LinearFactory
from inference.models.stored_weights import (
    TWICE_THE_MXFP4_VALUES,
    DenseWeight,
    ExpertWeight,
    GroupedWeight,
)
from inference.models.weight_source import DenseProduct
from tests.cases import each_case
from tests.inference.models.stored_weights import (
    IN_FEATURES,
    K_KINDS,
    KINDS,
    OUT_FEATURES,
    TABLE_KINDS,
    random_expert,
)

pytestmark = pytest.mark.slow

NUM_EXPERTS = 4
RAGGED = [3, 0, 1, 40]
"""Entries of each expert."""


def whole(weight: ExpertWeight) -> torch.Tensor:
    return weight.weight if isinstance(weight, DenseWeight) else weight.dequantize()


def check(
    device: torch.device,
    kind: str,
    counts: list[int],
    *,
    in_features: int = IN_FEATURES,
    gathers: bool = True,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Compares with torch's grouped product over the same weights written out."""
    experts = [random_expert(kind, seed, in_features) for seed in range(len(counts))]
    generator = torch.Generator().manual_seed(9)
    num_entries = sum(counts)
    x = torch.randn(num_entries, in_features, generator=generator).to(dtype)
    rows = torch.randint(0, num_entries, (num_entries,), generator=generator) if gathers else None
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    dense = DenseProduct(torch.stack([whole(weight) for weight in experts]))
    wanted = dense(x.float(), ends, rows)
    product = stacked_product(experts.__getitem__, len(experts), device, dtype)
    found = product(x.to(device), ends.to(device), None if rows is None else rows.to(device))
    assert found.dtype == dtype
    error = float((found.cpu().float() - wanted).abs().max() / wanted.abs().max())
    rounds_scales = kind == "fp8" or kind.endswith("K") or kind in TABLE_KINDS
    assert error < (0.02 if dtype != torch.float32 else 2**-11 if rounds_scales else 1e-5)


@each_case("kind", [*KINDS, *K_KINDS, *TABLE_KINDS])
def test_every_format_multiplies_as_its_dequantised_weight(device: torch.device, kind: str) -> None:
    check(device, kind, RAGGED)
    if kind in ("dense", "MXFP4", "Q5", "Q8", "fp8"):  # features that do not fill a step
        check(device, kind, [2, 3], in_features=96)
    if kind in ("dense", "Q6_K"):
        for dtype in (torch.bfloat16, torch.float16):
            check(device, kind, [2, 3], dtype=dtype)
    if kind in ("dense", "MXFP4"):
        for counts in ([0, 0, 0, 5], [1, 1, 1, 1], [0, 9, 0, 0], [17, 16, 0, 33]):
            check(device, kind, counts, gathers=False)


def test_the_grid_has_room_for_any_distribution() -> None:
    for num_entries in (1, 5, 16, 33, 200):
        tile_rows = chosen_tile_rows(TILES, num_entries, NUM_EXPERTS)
        most = most_tiles(num_entries, NUM_EXPERTS, tile_rows)
        for first in range(num_entries + 1):
            for second in range(num_entries - first + 1):
                counts = [first, second, 0, num_entries - first - second]
                assert sum(-(-count // tile_rows) for count in counts) <= most


def test_mxfp4_takes_four_bits_and_other_codes_eight(device: torch.device) -> None:
    """Entries beyond the last expert are left alone, and experts that are not stored alike are
    refused."""
    mxfp4, other = random_expert("MXFP4", 0), random_expert("Q8", 0)
    assert isinstance(mxfp4, GroupedWeight) and isinstance(other, GroupedWeight)
    codes = mxfp4_codes(mxfp4)
    assert codes is not None and mxfp4_codes(other) is None
    values = torch.tensor(TWICE_THE_MXFP4_VALUES, dtype=torch.int8)
    assert torch.equal(values[codes.long()], mxfp4.codes)
    product = stacked_product(lambda _: mxfp4, 2, device, torch.float32)
    assert product.packed.words.nbytes == 2 * OUT_FEATURES * IN_FEATURES // 2
    x = torch.randn(5, IN_FEATURES, generator=torch.Generator().manual_seed(1)).to(device)
    ends = torch.tensor([1, 3], dtype=torch.int32, device=device)
    assert torch.equal(product(x, ends)[:3], product(x[:3], ends))
    for kinds in (("Q4", "Q8"), ("IQ2_S", "NVFP4")):
        experts = [random_expert(kind, 0) for kind in kinds]
        with pytest.raises(UnlikeExpertsError, match="expert 1"):
            stacked_product(experts.__getitem__, 2, device, torch.float32)


def test_codes_times_scales_are_numbers_of_float16() -> None:
    scales = torch.tensor([[1e6, 3.0], [1e-6, 1e-9]])
    words, _ = pack_scales(scales, None, 2)
    largest = words.view(torch.float16).float().abs().max()
    assert float(largest) * 255 < torch.finfo(torch.float16).max


HIDDEN, INNER = 64, 32
PREFIX = "model.layers.0.mlp"
CONFIG = ExpertsConfig(num_experts=NUM_EXPERTS, experts_per_token=2, intermediate_size=INNER)


def opened(folder: Path, device: torch.device | None, *, gates_in_int8: bool) -> OpenedWeights:
    """In fp8; on a card that has the kernel, which Triton's interpreter runs where there is none.
    ``None``: for products one expert after the other."""
    generator = torch.Generator().manual_seed(1)

    def weight(rows: int, columns: int, in_int8: bool = False) -> dict[str, torch.Tensor]:
        if in_int8:
            codes = torch.randint(-128, 128, (rows, columns), generator=generator).to(torch.int8)
            return {"weight": codes, "weight_scale": torch.full((rows, 1), 0.0005)}
        scales = torch.rand(rows // 32, columns // 32, generator=generator) / 2000 + 1e-4
        codes = (torch.randn(rows, columns, generator=generator) * 100).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale_inv": scales}

    tensors = {f"{PREFIX}.gate.weight": torch.randn(NUM_EXPERTS, HIDDEN, generator=generator)}
    for expert in range(NUM_EXPERTS):
        parts = {"gate": weight(INNER, HIDDEN, gates_in_int8), "up": weight(INNER, HIDDEN)}
        for name, part in (parts | {"down": weight(HIDDEN, INNER)}).items():
            own = f"{PREFIX}.experts.{expert}.{name}_proj"
            tensors |= {f"{own}.{key}": tensor for key, tensor in part.items()}
    save_file(tensors, folder / "mixture.safetensors")
    quantization = Quantization(method="fp8", block=(32, 32))
    read = SafetensorsFiles([folder / "mixture.safetensors"], is_quantized=True)
    factory = LinearFactory(device or torch.device("cpu"), torch.float32, exact=device is None)
    if device is not None:
        factory.expert_trials = ExpertTrials(device, torch.float32)
    files = PackedFiles(read, quantization)
    return OpenedWeights(by_expert(files), factory, lambda _: None)


@torch.inference_mode()
@each_case("gates_in_int8", [False, True])
def test_rows_are_as_one_expert_after_the_other_has_them(
    device: torch.device, tmp_path: Path, gates_in_int8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(2))
    exact = opened(tmp_path, None, gates_in_int8=gates_in_int8)
    loop = load_mixture(CONFIG, exact, PREFIX)
    routes = loop.routes(x)
    wanted = loop.experts.prefill(x, routes)
    weights = opened(tmp_path, device, gates_in_int8=gates_in_int8)
    experts = load_grouped(CONFIG, weights, PREFIX)
    on_device = Routes(routes.experts.to(device), routes.weights.to(device))
    found = experts.decode(x.to(device), on_device).cpu()
    # fp8 that is multiplied out on the way in is rounded to bfloat16.
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 2**-7
    if gates_in_int8:
        int8_words, fp8_words = sorted(weights.report().split("; "))
        assert int8_words.startswith("4 x INT8 8-bit codes in a Triton kernel for experts")
        assert fp8_words.startswith("8 x F8_E4M3 fp8 codes in a Triton kernel for experts")
    else:  # a kernel that fails leaves dense experts, and is reported
        monkeypatch.setattr("inference.models.cuda.experts.stacked_product", None)
        weights = opened(tmp_path, device, gates_in_int8=False)
        load_grouped(CONFIG, weights, PREFIX)
        assert weights.report().endswith("dense in torch's grouped product: Triton: TypeError")


KIND_OF = {"Q4_1": "Q4", "Q5_0": "Q5", "Q5_1": "Q5 with minimums", "Q8_0": "Q8"}
KIND_OF |= {"F8_E4M3": "fp8"} | {kind: kind for kind in ("MXFP4", *K_KINDS)}


@each_case("format", KIND_OF)
def test_the_memory_estimate_is_what_packed_experts_take(device: torch.device, format: str) -> None:
    expert = random_expert(KIND_OF[format], 0)
    packed = stacked_product(lambda _: expert, 2, device, torch.bfloat16).packed
    tensors = packed.words, packed.high_words, packed.scales
    num_bytes = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    assert num_bytes / (2 * OUT_FEATURES * IN_FEATURES) == (format_of(format).card or 0) / 8
