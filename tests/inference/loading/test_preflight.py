from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from inference.loading import loader
from inference.loading.devices import (
    choose_device,
    choose_dtype,
    earlier_loads_on,
)
from inference.loading.preflight import LargestStep, check_fits, memory_need
from inference.models.config import ModelConfig
from inference.models.layer_configs import ExpertsConfig
from inference.protocol.load import EarlierLoads, LoadSpec
from inference.protocol.load_errors import (
    BadSourceError,
    DoesNotFitError,
    MissingFileError,
    UnknownArchitectureError,
)
from tests.cases import each_case
from tests.inference.loading.conftest import opened, save_directory, save_gguf
from tests.inference.models.dense_weights import TINY

CONFIG = replace(TINY, vocab_size=8, intermediate_size=64)


def test_the_need_counts_formats_and_a_short_context() -> None:
    need = memory_need(
        CONFIG, [("Q4_1", 3200), ("Q8_0", 3200), ("Q6_K", 100), ("F32", 10)], 4, kv_format="fp32"
    )
    assert need.weight_bytes == 2000 + 3600 + 4 * 110
    assert need.copy_bytes == 2 * 6400
    assert need.kv_bytes == 2 * 2 * 2 * 16 * 256 * 4


def test_the_native_decoder_packs_every_format() -> None:
    tensors = [("Q4_K", 25600), ("Q6_K", 25600), ("F32", 10)]
    need = memory_need(CONFIG, tensors, 4, kv_format="fp32", is_native=True)
    assert need.weight_bytes == 14800 + 21000 + 40
    while_loading = [("q5", 3200), ("q6", 3200)]
    need = memory_need(CONFIG, while_loading, 4, kv_format="fp32", is_native=True)
    assert need.weight_bytes == 2200 + 2600
    assert memory_need(CONFIG, while_loading, 4, kv_format="fp32").weight_bytes == 2 * 3600
    assert memory_need(CONFIG, tensors, 4, kv_format="fp32").weight_bytes == 16000 + 4 * 25600 + 40


@each_case(
    ("format", "num_bytes"),
    [("Q5_K", 2800), ("Q6_K", 2800), ("q5", 2600), ("q6", 2600), ("Q4_K", 2000), ("Q8_0", 3600)],
)
def test_a_card_keeps_projections_packed(format: str, num_bytes: int) -> None:
    """They are not dense, and those of 5 and 6 bits not in 8. Where torch has a kernel too, the
    larger of the two counts: the faster one is chosen later."""
    tensors = [(format, 3200), ("F16", 10)]
    need = memory_need(CONFIG, tensors, 2, kv_format="bf16", has_packed_kernels=True)
    assert need.weight_bytes == num_bytes + 20


def test_what_only_experts_are_packed_in_is_dense_elsewhere() -> None:
    tensors = [("F8_E4M3", 3200)]
    need = memory_need(CONFIG, tensors, 2, kv_format="bf16", has_packed_kernels=True)
    assert need.weight_bytes == 6400


def test_a_quantised_table_takes_a_byte_for_each_code() -> None:
    """Its rows are looked up: they are not packed."""
    need = memory_need(CONFIG, [], 2, kv_format="bf16", tables=[("Q4_K", 3200)])
    assert need.weight_bytes == 3600


def test_the_need_counts_the_largest_step_and_what_earlier_loads_taught() -> None:
    tensors = [("F32", 1000)]
    step = LargestStep(prompt_rows=10, decode_rows=3)
    plain = memory_need(CONFIG, tensors, 4, kv_format="fp32", largest_step=step)
    per_row = 3 * 64 + 8 * 16 + 2 * 64
    assert plain.step_bytes == (10 + 3) * per_row * 4 + 2 * 3 * 8 * 4
    taught = memory_need(
        CONFIG, tensors, 4, kv_format="fp32", largest_step=step, correction_bytes=-500
    )
    assert taught.required_bytes == plain.required_bytes - 500
    assert taught.load_bytes == taught.required_bytes - taught.kv_bytes


def test_a_step_of_a_mixture_counts_every_expert_of_a_row() -> None:
    experts = ExpertsConfig(num_experts=8, experts_per_token=3, intermediate_size=32)
    mixture = replace(CONFIG, experts=experts, mlps=("sparse",) * 2)
    step = LargestStep(prompt_rows=10, decode_rows=1)

    def step_bytes(config: ModelConfig) -> int:
        return memory_need(config, [], 4, kv_format="fp32", largest_step=step).step_bytes

    more_numbers = 3 * (2 * 32 + 2 * 64) - 2 * 64
    assert step_bytes(mixture) - step_bytes(CONFIG) == (10 + 1) * 4 * more_numbers


def test_what_was_learnt_on_another_kind_of_device_is_left_aside() -> None:
    earlier = EarlierLoads(device_kind="cuda", memory_correction_bytes=10**15)
    asked = LoadSpec(job_id="1", model="m", source="path:x", earlier_loads=earlier)
    assert earlier_loads_on(asked, torch.device("cpu")) is None
    assert earlier_loads_on(asked, torch.device("cuda:1")) is earlier


def test_a_model_that_does_not_fit_is_refused_with_both_numbers() -> None:
    need = memory_need(CONFIG, [("F16", 5 * 10**9)], 2, kv_format="bf16")
    check_fits(need, 11 * 10**9, "cuda:0")
    with pytest.raises(DoesNotFitError, match=r"needs 10\.00 GB on cuda:0 .* 8\.00 GB are free"):
        check_fits(need, 8 * 10**9, "cuda:0")


def test_open_model_measures_before_it_allocates(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: 100_000)
    with pytest.raises(DoesNotFitError, match=r"0\.00 GB are free"):
        opened(tiny_directory, tmp_path)


def test_memory_that_other_models_may_still_take_is_not_free(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: 10**10)
    opened(tiny_directory, tmp_path, promised_bytes=10**9)
    with pytest.raises(DoesNotFitError, match=r"0\.00 GB are free"):
        opened(tiny_directory, tmp_path, promised_bytes=10**10)


def test_kv_memory_that_is_not_there_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: 23 * 10**9)
    with pytest.raises(DoesNotFitError, match=r"900\.00 GB of memory .* 23\.00 GB are free"):
        opened(tmp_path / "missing", tmp_path, kv_memory_bytes=900 * 10**9)


def test_kv_memory_that_was_asked_for_must_fit_beside_the_weights(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: 10**9)
    with pytest.raises(DoesNotFitError, match=r"1\.00 GB for keys and values"):
        opened(tiny_directory, tmp_path, kv_memory_bytes=10**9)


def test_more_than_one_device_is_refused_by_name(tiny_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(BadSourceError, match="a replica of 1 rank: set tensor_parallel to 2"):
        opened(tiny_directory, tmp_path, min_devices=2)


def test_the_architecture_is_known_before_the_tokenizer_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "reformer"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UnknownArchitectureError, match="reformer"):
        opened(tmp_path, tmp_path)


def test_copies_for_prompts_are_kept_only_where_memory_is_plenty(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gguf.constants import GGMLQuantizationType

    from inference.models.layers.kernels import has_fast_bfloat16

    weights = load_file(tiny_directory / "model.safetensors")
    name = "model.layers.0.mlp.down_proj"
    types = {f"{name}.weight": GGMLQuantizationType.Q4_1}
    file = save_gguf(tmp_path / "x.gguf", weights, types=types)

    model = opened(file, tmp_path)
    copied = model.weights.linear(name)
    needed = model.need.required_bytes
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: needed)
    lean = opened(file, tmp_path).weights.linear(name)

    is_copied = has_fast_bfloat16(torch.device("cpu"))
    assert (copied.prefill_weight is not None) == is_copied
    assert model.factory.copied_bytes == (model.need.copy_bytes if is_copied else 0)
    assert lean.prefill_weight is None


@each_case(
    ("devices", "named"),
    [
        (["cpu", "cuda:0"], "2 devices are given to a replica of 1 rank"),
        (["gpu"], "write cpu or cuda:0"),
        (["cuda:99"], "cuda:99 is not here"),
        (["meta"], "not supported"),
    ],
)
def test_devices_that_cannot_be_used(devices: list[str], named: str) -> None:
    with pytest.raises(BadSourceError, match=named):
        choose_device(LoadSpec(job_id="1", model="m", source="path:x", devices=devices))


@each_case(("asked", "used"), [(["cuda:1"], "cuda:1"), (["cuda"], "cuda:0")])
def test_a_card_becomes_the_current_one_before_anything_is_loaded(
    asked: list[str], used: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Kernels are launched on the current one, whatever they are given."""
    current: list[str] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: current.append(str(device)))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: 1)
    with pytest.raises(MissingFileError):
        opened(tmp_path / "none.gguf", tmp_path, devices=asked)
    assert current == [used]


def test_the_dtype_on_a_cpu() -> None:
    cpu = torch.device("cpu")
    asked = LoadSpec(job_id="1", model="m", source="path:x", dtype="bfloat16")
    assert choose_dtype(asked, cpu) == torch.bfloat16
    assert choose_dtype(LoadSpec(job_id="1", model="m", source="path:x"), cpu) == torch.float32


NUM_EXPERTS, INNER, HIDDEN, NUM_LAYERS = 4, 32, 64, 2
NUM_WEIGHTS = NUM_LAYERS * NUM_EXPERTS * 3 * INNER * HIDDEN


def required_bytes(
    directory: Path,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    **changes: Any,
) -> int:
    """What a card of this capability must have for it, by the refusal of one that has nothing."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(loader, "use_device", lambda device: None)
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: 0)
    asked = {"devices": ["cuda:0"], "dtype": "bfloat16", "quantization": "q4"} | changes
    with pytest.raises(DoesNotFitError) as refused:
        opened(directory, cache_dir, **asked)
    assert refused.value.needed_bytes is not None
    return refused.value.needed_bytes


def test_a_card_with_the_kernel_keeps_them_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = save_directory(
        tmp_path / "mixture",
        "qwen3_moe",
        hidden_size=HIDDEN,
        num_hidden_layers=NUM_LAYERS,
        num_experts=NUM_EXPERTS,
        num_experts_per_tok=2,
        moe_intermediate_size=INNER,
    )

    def needed(capability: tuple[int, int], **changes: Any) -> int:
        return required_bytes(directory, tmp_path, monkeypatch, capability, **changes)

    assert needed((7, 5)) - needed((8, 0)) == NUM_WEIGHTS * (2 - 0.625)
    more_bits = needed((8, 0), quantization="q8") - needed((8, 0))
    of_others = needed((7, 5), quantization="q8") - needed((7, 5))
    assert more_bits - of_others == NUM_WEIGHTS * (1.0625 - 0.625)
