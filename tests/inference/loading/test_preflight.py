from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.constants import GGMLQuantizationType

from inference.loading import loader
from inference.loading.devices import (
    choose_device,
    choose_dtype,
    earlier_loads_on,
)
from inference.loading.preflight import LargestStep, check_fits, memory_need
from inference.models.config import ModelConfig
from inference.models.layer_configs import ExpertsConfig
from inference.models.layers.kernels import has_fast_bfloat16
from inference.protocol.load import EarlierLoads, LoadSpec
from inference.protocol.load_errors import (
    BadSourceError,
    DoesNotFitError,
    MissingFileError,
    UnknownArchitectureError,
)
from tests.cases import each_case
from tests.inference.loading.conftest import opened, save_directory, saved_gguf
from tests.inference.models.dense_weights import TINY

CONFIG = replace(TINY, vocab_size=8, intermediate_size=64)


def test_the_need_counts_copies_and_a_short_context() -> None:
    tensors = [("Q4_1", 3200), ("Q8_0", 3200), ("Q6_K", 100), ("F32", 10)]
    need = memory_need(CONFIG, tensors, 4, kv_format="fp32")
    assert need.weight_bytes == 2000 + 3600 + 4 * 110
    assert need.copy_bytes == 2 * 6400
    assert need.kv_bytes == 2 * 2 * 2 * 16 * 256 * 4


CARD: dict[str, Any] = {"has_packed_kernels": True}


@each_case(
    ("tensors", "element_bytes", "runs", "weight_bytes"),
    [
        # The native decoder packs every format, and torch some.
        ([("Q4_K", 25600), ("Q6_K", 25600), ("F32", 10)], 4, {"is_native": True}, 35840),
        ([("Q4_K", 25600), ("Q6_K", 25600), ("F32", 10)], 4, {}, 16000 + 4 * 25600 + 40),
        ([("q5", 3200), ("q6", 3200)], 4, {"is_native": True}, 2200 + 2600),
        ([("q5", 3200), ("q6", 3200)], 4, {}, 2 * 3600),
        # A card keeps projections packed, those of 5 and 6 bits not in 8. Where torch has a kernel
        # too, the larger of the two counts: the faster one is chosen later.
        *(
            ([(format, 3200), ("F16", 10)], 2, CARD, num_bytes + 20)
            for format, num_bytes in [
                *(("Q5_K", 2800), ("Q6_K", 2800), ("q5", 2600), ("q6", 2600)),
                *(("Q4_K", 2000), ("Q8_0", 3600)),
            ]
        ),
        # What only experts are packed in is dense elsewhere.
        ([("F8_E4M3", 3200)], 2, CARD, 6400),
        # A table's rows are looked up: they are not packed.
        ([], 2, {"tables": [("Q4_K", 3200)]}, 3600),
    ],
)
def test_what_weights_take(
    tensors: list[tuple[str, int]], element_bytes: int, runs: dict[str, Any], weight_bytes: int
) -> None:
    need = memory_need(CONFIG, tensors, element_bytes, kv_format="bf16", **runs)
    assert need.weight_bytes == weight_bytes


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


@each_case(
    ("free_bytes", "asked", "words"),
    [
        (100_000, {}, r"0\.00 GB are free"),
        # Memory that other models may still take is not free.
        (10**10, {"promised_bytes": 10**10}, r"0\.00 GB are free"),
        # Refused before anything is fetched.
        (
            23 * 10**9,
            {"kv_memory_bytes": 900 * 10**9, "source": "path:/nowhere"},
            r"900\.00 GB of memory .* 23\.00 GB are free",
        ),
        (10**9, {"kv_memory_bytes": 10**9}, r"1\.00 GB for keys and values"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_allocated(
    tiny_directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    free_bytes: int,
    asked: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: 10**10)
    opened(tiny_directory, tmp_path, promised_bytes=10**9).close()
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: free_bytes)
    with pytest.raises(DoesNotFitError, match=words):
        opened(tiny_directory, tmp_path, **asked)


def test_more_than_one_device_is_refused_by_name(tiny_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(BadSourceError, match="a replica of 1 rank: set tensor_parallel to 2"):
        opened(tiny_directory, tmp_path, min_devices=2)


def test_the_architecture_is_known_before_the_tokenizer_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "reformer"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UnknownArchitectureError, match="reformer"):
        opened(tmp_path, tmp_path)


def test_copies_for_prompts_are_kept_only_where_memory_is_plenty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "model.layers.0.mlp.down_proj"
    file = saved_gguf(tmp_path, types={f"{name}.weight": GGMLQuantizationType.Q4_1})

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


NUM_LAYERS, NUM_EXPERTS, INNER, HIDDEN = 2, 4, 32, 64
NUM_WEIGHTS = NUM_LAYERS * NUM_EXPERTS * 3 * INNER * HIDDEN


def test_a_card_with_the_kernel_keeps_experts_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = {
        "num_experts": NUM_EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": INNER,
    }
    directory = save_directory(tmp_path / "mixture", "qwen3_moe", **experts)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(loader, "use_device", lambda device: None)
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: 0)

    def needed(capability: tuple[int, int], quantization: str) -> int:
        """What a card of this capability must have for it, as one that has nothing refuses it."""
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        asked = {"devices": ["cuda:0"], "dtype": "bfloat16", "quantization": quantization}
        with pytest.raises(DoesNotFitError) as refused:
            opened(directory, tmp_path, **asked)
        assert refused.value.failure.needed_bytes is not None
        return refused.value.failure.needed_bytes

    assert needed((7, 5), "q4") - needed((8, 0), "q4") == NUM_WEIGHTS * (2 - 0.625)
    more_bits = needed((8, 0), "q8") - needed((8, 0), "q4")
    of_others = needed((7, 5), "q8") - needed((7, 5), "q4")
    assert more_bits - of_others == NUM_WEIGHTS * (1.0625 - 0.625)
