"""What a load takes of memory, told from configs and headers; its devices and KV formats; and what
a host has: as much as its control group leaves, and what Triton needs."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import psutil
import pytest
import torch

from inference.loading import devices, loader, preflight
from inference.loading.formats import FORMATS
from inference.loading.host import host_memory, triton_problem
from inference.loading.hub_config import parse_config
from inference.loading.loader import open_model
from inference.loading.model_costs import ModelCosts
from inference.loading.read_costs import config_tensors, model_costs
from inference.models.kv_format import KVFormat, kv_bytes_per_token
from inference.models.layer_configs import ExpertsConfig
from inference.models.native import library
from inference.protocol.load import EarlierLoads, KVDtype, LoadSpec
from inference.protocol.load_errors import BadSourceError, DoesNotFitError, MissingFileError
from tests.inference.loading.conftest import opened, save_directory
from tests.inference.models.dense_weights import TINY

CONFIG = replace(TINY, vocab_size=8, intermediate_size=64)


CARD: dict[str, Any] = {"is_card": True, "packs_projections": True}
NATIVE, TORCH = {"dense_bytes": 4, "is_native": True}, {"dense_bytes": 4}
MIXED = [("Q4_K", 25600), ("Q6_K", 25600), ("F32", 10)]


def test_a_weight_takes_what_its_role_has_kernels_for() -> None:
    for role, tensors, kernels, expected in (
        # The native decoder packs every format, and torch some, which may have copies.
        ("column", MIXED, NATIVE, (14800 + 21000 + 40, 51200)),
        ("column", MIXED, TORCH, (16000 + 4 * 25600 + 40, 51200)),
        ("column", [("Q4_1", 3200), ("Q8_0", 3200), ("Q6_K", 10)], TORCH, (5640, 12800)),
        ("column", [("q5", 3200), ("q6", 3200)], NATIVE, (4800, 12800)),
        ("column", [("q5", 3200), ("q6", 3200)], TORCH, (2 * 3600, 12800)),
        # A card keeps projections packed, those of 5 and 6 bits not in 8. Where torch has a kernel
        # too, the larger of the two counts: the faster one is chosen later.
        *(
            ("column", [(format, 3200), ("F16", 10)], CARD, (num_bytes + 20, copy_bytes))
            for format, num_bytes, copy_bytes in [
                *(("Q5_K", 2800, 0), ("q6", 2600, 6400), ("Q4_K", 2000, 6400)),
                *(("Q8_0", 3600, 6400), ("fp8", 3200, 0)),
            ]
        ),
        # What only experts are packed in is dense elsewhere.
        ("column", [("F8_E4M3", 3200)], CARD, (6400, 0)),
        # A table's rows are looked up: they are not packed, but for the head that is tied to them.
        ("embedding", [("Q4_K", 3200)], CARD, (3600, 0)),
        ("tied embedding", [("Q4_K", 3200)], CARD, (5600, 6400)),
        ("embedding", [("BF16", 3200)], CARD, (6400, 0)),
        ("embedding", [("Q4_K", 3200)], {}, (2000, 6400)),
        ("experts", [("F8_E4M3", 3200)], CARD | {"packs_experts": True}, (3400, 0)),
        ("experts", [("Q4_K", 3200)], CARD, (6400, 0)),
        ("experts", [("Q4_K", 3200)], {}, (2000, 6400)),
        ("tower", [("Q8_0", 3200)], {}, (6400, 0)),
    ):
        own = role.removeprefix("tied ")
        weights = [preflight.Weight(own, format, number) for format, number in tensors]
        found = preflight.Kernels(**{"dense_bytes": 2, **kernels}).bytes_of(
            weights, is_tied=own != role
        )
        assert found == expected


def test_what_a_step_and_a_short_context_take_and_what_fits() -> None:
    assert preflight.shortest_context_bytes(CONFIG, "fp32") == 2 * 2 * 2 * 16 * 256 * 4
    per_row = 3 * 64 + 8 * 16 + 2 * 64
    rows = {"prompt_rows": 10, "decode_rows": 3}
    plain_bytes = preflight.step_bytes(CONFIG, 4, **rows)
    assert plain_bytes == (10 + 3) * per_row * 4 + 2 * 3 * 8 * 4
    experts = ExpertsConfig(num_experts=8, experts_per_token=3, intermediate_size=32)
    mixture = replace(CONFIG, experts=experts, mlps=("sparse",) * 2)
    more_numbers = 3 * (2 * 32 + 2 * 64) - 2 * 64
    assert preflight.step_bytes(mixture, 4, **rows) - plain_bytes == (10 + 3) * 4 * more_numbers
    need = preflight.MemoryNeed(weight_bytes=10**10, kv_bytes=2 * 10**6, copy_bytes=0)
    preflight.check_fits(need, 11 * 10**9, "cuda:0")
    with pytest.raises(DoesNotFitError, match=r"needs 10\.00 GB on cuda:0 .* 8\.00 GB are free"):
        preflight.check_fits(need, 8 * 10**9, "cuda:0")
    need = preflight.MemoryNeed(
        weight_bytes=4000, kv_bytes=70, copy_bytes=900, correction_bytes=-500
    )
    taken = (need.load_bytes, need.required_bytes)
    assert taken == (3500, 3570), "what earlier loads taught counts"
    assert replace(need, correction_bytes=-5000).load_bytes == 0


NOWHERE = {"kv_memory_bytes": 900 * 10**9, "source": "path:/nowhere"}


def test_what_does_not_fit_is_refused_before_anything_is_allocated(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: 10**10)
    opened(tiny_directory, tmp_path, promised_bytes=10**9).close()
    for free_bytes, asked, words in (
        (100_000, {}, r"0\.00 GB are free"),
        # Memory that other models may still take is not free.
        (10**10, {"promised_bytes": 10**10}, r"0\.00 GB are free"),
        # Refused before anything is fetched.
        (23 * 10**9, NOWHERE, r"900\.00 GB of memory .* 23\.00 GB are free"),
        (10**9, {"kv_memory_bytes": 10**9}, r"1\.00 GB for keys and values"),
    ):
        monkeypatch.setattr(loader, "free_memory_bytes", lambda device, free=free_bytes: free)
        with pytest.raises(DoesNotFitError, match=words):
            opened(tiny_directory, tmp_path, **asked)


CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


def spec(**fields: Any) -> LoadSpec:
    return LoadSpec(job_id="1", model="m", source="path:/nowhere", **fields)


def test_what_a_spec_means_on_a_device_and_devices_that_cannot_be_used() -> None:
    for fields, named in (
        ({"min_devices": 2}, "set tensor_parallel to 2"),
        ({"devices": ["cpu", "cuda:0"]}, "2 devices are given to a replica of 1 rank"),
        ({"devices": ["gpu"]}, "write cpu or cuda:0"),
        ({"devices": ["cuda:99"]}, "cuda:99 is not here"),
        ({"devices": ["meta"]}, "not supported"),
    ):
        with pytest.raises(BadSourceError, match=named):
            devices.choose_device(spec(**fields))
    earlier = EarlierLoads(device_kind="cuda", memory_correction_bytes=9)
    asked = spec(earlier_loads=earlier)
    assert devices.choose_dtype(asked, CPU) == torch.float32
    assert devices.choose_dtype(spec(dtype="bfloat16"), CPU) == torch.bfloat16
    assert devices.earlier_loads_on(asked, CPU) is None, "learnt on another kind of device"
    assert devices.earlier_loads_on(asked, torch.device("cuda:1")) is earlier


def test_a_card_becomes_the_current_one_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Kernels are launched on the current one, whatever they are given."""
    current: list[str] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: current.append(str(device)))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: 1)
    for asked in ("cuda:1", "cuda"):
        with pytest.raises(MissingFileError):
            opened(tmp_path / "none.gguf", tmp_path, devices=[asked])
    assert current == ["cuda:1", "cuda:0"]


def test_a_card_with_the_kernels_keeps_experts_and_projections_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    directory = save_directory(tmp_path / "mixture", "qwen3_moe", **experts)
    num_weights = 2 * 4 * 3 * 32 * 64
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(loader, "use_device", lambda device: None)
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: 0)

    def needed(capability: tuple[int, int], quantization: str, problem: str | None = None) -> int:
        """What a card of this capability must have for it, as one that has nothing refuses it."""
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(loader, "triton_problem", lambda: problem)
        asked = {"devices": ["cuda:0"], "dtype": "bfloat16", "quantization": quantization}
        with pytest.raises(DoesNotFitError) as refused:
            opened(directory, tmp_path, **asked)
        assert refused.value.failure.needed_bytes is not None
        return refused.value.failure.needed_bytes

    assert needed((7, 5), "q4") - needed((8, 0), "q4") == num_weights * (2 - 0.625)
    more_bits = needed((8, 0), "q8") - needed((8, 0), "q4")
    of_others = needed((7, 5), "q8") - needed((7, 5), "q4")
    assert more_bits - of_others == num_weights * (1.0625 - 0.625)
    # Without Triton torch's kernel takes 6 bits as 8.
    widened = needed((8, 0), "q6", "no compiler") - needed((8, 0), "q6")
    assert widened == 2 * (2 * 64 + 2 * 32) * 64 * (9 - 6.5) / 8


NOT_NATIVE = "kv_dtype {} is not built for the native decoder .* fp32, bf16, int8"
NO_FP8 = r"needs a card of compute capability 8\.9 or more, and this one has 8\.6; set it to int8"


def test_a_kv_format_is_had_or_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Automatic is bytes where the CPU multiplies them, and on torch what it computes in."""
    for device, fields, is_native, features, chosen in (
        (CPU, {}, True, b"flags : avx2 avx512_vnni", "int8"),
        (CPU, {}, True, b"flags : avx2", "bf16"),
        (CPU, {}, False, b"", "fp32"),
        (CUDA, {"dtype": "float16"}, False, b"", "fp16"),
    ):
        monkeypatch.setattr(library, "_cpu", lambda features=features: features)
        assert devices.planned_kv_format(spec(**fields), device, is_native=is_native) == chosen
    assert set(get_args(KVDtype)) == {"auto", *get_args(KVFormat)}
    monkeypatch.setattr(loader, "fetch_files", None)  # a fetch would fail
    for device, kv_dtype, capability, refusal in (
        *((CPU, kv_dtype, None, None) for kv_dtype in ("fp32", "bf16", "int8")),
        *((CPU, kv_dtype, None, NOT_NATIVE.format(kv_dtype)) for kv_dtype in ("fp8", "fp16")),
        *((CUDA, kv_dtype, (8, 6), None) for kv_dtype in set(get_args(KVFormat)) - {"fp8"}),
        (CUDA, "fp8", (8, 6), f"kv_dtype fp8 {NO_FP8}"),
        *((CUDA, "fp8", capability, None) for capability in ((8, 9), (9, 0))),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, has=capability: has)
        asked = spec(kv_dtype=kv_dtype, devices=["cpu"])
        with nullcontext() if refusal is None else pytest.raises(BadSourceError, match=refusal):
            found = devices.planned_kv_format(asked, device, is_native=device is CPU)
            assert found == kv_dtype
        if refusal is not None and device is CPU and library.find_compiler() is not None:
            with pytest.raises(BadSourceError, match=f"kv_dtype {kv_dtype}"):
                open_model(asked, Path("/nowhere"), lambda _: None)


MIB = 2**20


def test_a_control_group_confines(tmp_path: Path) -> None:
    """Without a limit, or with one over what the host has, it is the whole host."""
    host_bytes = psutil.virtual_memory().total
    for limit, used in ((None, None), ("max", 5), (2**60, 0)):
        if limit is not None:
            (tmp_path / "memory.max").write_text(f"{limit}\n")
            (tmp_path / "memory.current").write_text(f"{used}\n")
        found = host_memory(tmp_path)
        assert found.total_bytes == host_bytes and 0 < found.free_bytes <= host_bytes
    (tmp_path / "memory.max").write_text(f"{100 * MIB}\n")
    for used, free_bytes in ((30 * MIB, 70 * MIB), (101 * MIB, 0)):
        (tmp_path / "memory.current").write_text(f"{used}\n")
        found = host_memory(tmp_path)
        assert (found.total_bytes, found.free_bytes) == (100 * MIB, free_bytes)


def test_triton_needs_a_c_compiler_and_headers(tmp_path: Path) -> None:
    """What CC names is the compiler, and no other."""
    no_compiler, no_headers = "a C compiler", "headers of Python 3"
    for number, (program, named, has_headers, problem) in enumerate(
        (
            ("gcc", None, True, None),
            ("clang", None, True, None),
            ("zig-cc", "zig-cc", True, None),
            ("zig-cc", "{}/zig-cc", True, None),
            ("gcc", "absent", True, no_compiler),
            ("g++", None, True, no_compiler),
            ("gcc", None, False, no_headers),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / program).touch(0o755)
        if has_headers:
            (folder / "Python.h").touch()
        environment = {"PATH": str(folder)} | ({"CC": named.format(folder)} if named else {})
        found = triton_problem(environment, folder)
        if problem is None:
            assert found is None
        else:
            assert found is not None and problem in found
            assert "install gcc and python3-dev" in found
            assert {no_compiler in found, no_headers in found} == {True, False}


COSTED = {"model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128}
COSTED |= {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
COSTED |= {"max_position_embeddings": 4096, "tie_word_embeddings": False}
MIXTURE = COSTED | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}
MIXTURE |= {"moe_intermediate_size": 32, "norm_topk_prob": True, "head_dim": 16}
MIXTURE |= {"decoder_sparse_step": 1}
ATTENTION = 64 * (64 + 32 + 32 + 64)
MLP = 3 * 64 * 128
NORMS = 2 * 64
TABLE = 1000 * 64


def costs_of(hub: dict[str, Any], quantization: str = "auto", **options: Any) -> ModelCosts:
    config = parse_config(hub, {})
    return model_costs(config, config_tensors(config, hub, quantization), spec(**options))


def test_every_weight_is_counted_once() -> None:
    costs = costs_of(COSTED)
    assert [layer.num_weights for layer in costs.layers] == [ATTENTION + MLP + NORMS] * 3
    assert costs.layers[0].weight_bytes.cuda == 2 * (ATTENTION + MLP + NORMS)
    assert costs.layers[0].weight_bytes.cpu == 4 * (ATTENTION + MLP + NORMS)
    assert costs.outer_bytes.cuda == 2 * (2 * TABLE + 64)
    assert (costs.head_bytes.cuda, costs.num_head_weights) == (2 * TABLE, TABLE)
    tied = costs_of(COSTED | {"tie_word_embeddings": True})
    assert tied.outer_bytes.cuda == 2 * (TABLE + 64)
    assert tied.head_bytes == costs.head_bytes
    packed = costs_of(COSTED | {"tie_word_embeddings": True}, "q4")
    assert packed.head_bytes.cuda == 9 / 8 * TABLE
    assert packed.outer_bytes.cuda == 2 * 9 / 8 * TABLE + 2 * 64, "rows are looked up beside it"
    held = sum(one.kv_token_bytes.cuda for one in costs_of(COSTED, kv_dtype="int8").layers)
    assert held == kv_bytes_per_token(parse_config(COSTED, {}), "int8")
    assert costs.context_tokens == 4096
    assert costs_of(COSTED, max_context_tokens=512).context_tokens == 512
    mixture, experts = costs_of(MIXTURE), 8 * 3 * 64 * 32
    for layer in mixture.layers:
        assert layer.num_expert_weights == experts
        assert layer.expert_bytes.cuda == 2 * experts
    assert mixture.active_share == 0.25
    assert all(layer.num_expert_weights == 0 for layer in costs.layers)
    for quantization, packed in (("q4", 0.625), ("q8", 1.0625)):
        taken = costs_of(COSTED, quantization).layers[0].weight_bytes
        least = FORMATS[quantization].card / 8 * (ATTENTION + MLP)
        # torch's kernel for 8 bits takes a little more than the card's own.
        assert least <= taken.cuda - 2 * NORMS <= 1.07 * least
        assert taken.cpu == packed * (ATTENTION + MLP) + 4 * NORMS
    awq = COSTED | {"quantization_config": {"quant_method": "awq", "bits": 4}}
    declared = FORMATS["INT4"].native / 8 * (ATTENTION + MLP) + 4 * NORMS
    assert costs_of(awq).layers[0].weight_bytes.cpu == declared
    sizes = {"vocab_size": 100, "n_embd": 64, "n_head": 4, "n_layer": 2}
    with pytest.raises(BadSourceError, match="known only once it is loaded"):
        costs_of({"model_type": "gpt2", "n_positions": 128} | sizes)
