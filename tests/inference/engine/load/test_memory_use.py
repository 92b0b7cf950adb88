"""What a load takes is what its process then holds; a second load knows what the first one took,
and how fast requests were. What a model's first steps measure. Weights go straight to where they
stay."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pynvml
import pytest
import torch

from inference.engine.drawing import TorchDrawer
from inference.engine.load import memory_use
from inference.engine.load.memory_use import HostGauge, anonymous_bytes, gauge_for
from inference.engine.load.trial import measure_prefill, run_largest_steps, try_out
from inference.engine.waiting_queue import SchedulerLimits
from inference.models.backend import PlainBackend
from inference.models.kv_format import KVFormat, kv_bytes_per_token
from inference.models.layers.attention import MOST_GATHERED_BYTES
from inference.models.paged_kv import lazy_zeros
from inference.models.step_input import NUM_LONE_STATES, StepInput
from inference.protocol.engine import Loaded, LoadFailedMessage
from inference.protocol.load import EarlierLoads, PrefillSpeed
from inference.protocol.load_report import LoadReport
from tests.cases import each_case
from tests.inference.engine.conftest import cpu_spec
from tests.inference.engine.load.test_kv_memory import CONFIG
from tests.inference.engine.test_process import started

REPOSITORY_DIR = Path(__file__).resolve().parents[4]
MB = 10**6


def test_the_gauge_sees_what_is_held_and_what_was_held_for_a_moment() -> None:
    gc.collect()  # what earlier tests left is not freed meanwhile
    gauge = HostGauge()
    held = np.ones(60 * MB, dtype=np.uint8)
    gauge.watch()
    assert np.ones(100 * MB, dtype=np.uint8).any()
    assert 150 * MB < gauge.used_bytes() < 175 * MB
    gauge.watch()
    assert 55 * MB < gauge.used_bytes() < 70 * MB and held.any()
    # Keys and values are held where somebody wrote to.
    before_bytes = anonymous_bytes()
    promised = lazy_zeros((50, 4 * MB), torch.uint8, torch.device("cpu"))
    promised[:, 0] = 1
    assert anonymous_bytes() - before_bytes < 20 * MB, "a small page for each byte, not a huge one"
    assert int(promised[:, :2].sum()) == 50, "all else is zero"


@each_case("lists_us", [True, False], ids=["on the host", "in a container"])
def test_a_context_on_a_card_is_counted_where_the_driver_does_not_list_the_process(
    lists_us: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card of 24 GB as NVML and torch see it from one process of several; another one is lost."""
    card, view = SimpleNamespace(context=0, reserved=0), SimpleNamespace

    def free_bytes() -> int:
        return int(21_000 * MB - card.context - card.reserved)

    def handle_of(index: int) -> int:
        if index == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def processes(handle: int) -> list[Any]:
        ours = view(pid=os.getpid(), usedGpuMemory=card.context + card.reserved)
        return [view(pid=1, usedGpuMemory=3_000 * MB), ours] if lists_us else []

    nvml = view(NVMLError=pynvml.NVMLError, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 2)
    nvml.nvmlDeviceGetHandleByIndex = handle_of
    nvml.nvmlDeviceGetUUID = lambda handle: "GPU-1234"
    nvml.nvmlDeviceGetHandleByUUID = {"GPU-1234": 1}.__getitem__
    nvml.nvmlDeviceGetMemoryInfo = lambda handle: view(free=free_bytes())
    nvml.nvmlDeviceGetComputeRunningProcesses = processes
    monkeypatch.setattr(memory_use, "pynvml", nvml)
    cuda = view(get_device_properties=lambda device: view(uuid="1234"))
    cuda.mem_get_info = lambda device: (free_bytes(), 24_000 * MB)
    cuda.memory_reserved = lambda device: card.reserved
    host = HostGauge()
    card.context, card.reserved = 450 * MB, 5_000 * MB
    monkeypatch.setattr(torch, "cuda", cuda)
    assert gauge_for(torch.device("cuda:0"), host).process_bytes == 450 * MB


@pytest.mark.slow
def test_the_second_load_is_estimated_within_five_percent_and_bound_by_real_speed(
    default_gguf: Path, data_dir: Path
) -> None:
    """KV, which both count whole, is subtracted: only the rest could be wrong."""

    def load(**earlier: Any) -> LoadReport:
        earlier = {"earlier_loads": EarlierLoads(device_kind="cpu", **earlier)} if earlier else {}
        spec = cpu_spec(default_gguf, kv_memory_bytes=64 * MB, max_prefill_s=300, **earlier)
        with started(spec, data_dir) as engine:
            return engine.next(Loaded | LoadFailedMessage).report

    first = load()
    assert first.actual_bytes - first.kv_bytes > first.weight_bytes
    assert first.process_bytes > 50 * MB
    assert first.prefill_speed is not None
    correction, speed = first.memory_correction_bytes, PrefillSpeed(token_s=0.25)
    second = load(memory_correction_bytes=correction, prefill_speed=speed)
    actual_bytes = second.actual_bytes - second.kv_bytes
    assert abs(second.estimated_bytes - second.actual_bytes) <= 0.05 * actual_bytes
    # Learning from an estimate that was right changes next to nothing.
    assert abs(second.memory_correction_bytes - correction) <= 0.05 * actual_bytes
    assert second.context_tokens == 1200, "300 s at the four tokens a second that requests had"
    assert "(4 tokens/s, average of earlier requests)" in second.context_reason


def save_sharded(directory: Path) -> Path:
    """A llama of 120 million weights, in shards of at most 60 MB."""
    from transformers import LlamaConfig, LlamaForCausalLM  # which no engine has a use for

    sizes = {"vocab_size": 16_000, "hidden_size": 1024, "intermediate_size": 2816}
    depth = {"num_hidden_layers": 8, "num_attention_heads": 16, "max_position_embeddings": 512}
    config = LlamaConfig(**sizes, **depth, tie_word_embeddings=True, dtype="bfloat16")
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(directory, max_shard_size="60MB")
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "q4"])
def test_beside_the_model_there_is_never_more_than_one_shard(
    tmp_path: Path, ascii_tokenizer_file: Path, data_dir: Path, kind: str
) -> None:
    """Anonymous memory: the mapped files are the page cache's. float32 goes through the native
    decoder's panels, bfloat16 through torch, and q4 is made on the way by all cores."""
    directory = save_sharded(tmp_path / "sharded")
    shutil.copy(ascii_tokenizer_file, directory / "tokenizer.json")
    shard_bytes = max(file.stat().st_size for file in directory.glob("*.safetensors"))
    environment = os.environ | {"HELEXA_DATA_DIR": str(data_dir), "HELEXA_ENGINE_THREADS": "2"}
    module = "tests.inference.engine.load.watched_load"
    command = [sys.executable, "-m", module, str(directory), kind]
    seen = json.loads(
        subprocess.check_output(command, cwd=REPOSITORY_DIR, env=environment, timeout=120)
    )
    assert seen["model_bytes"] > shard_bytes
    assert seen["peak_bytes"] - seen["model_bytes"] <= 1.1 * shard_bytes, seen
    unneeded = {"huggingface_hub", "transformers", "sympy", "scipy", "django", "redis"}
    assert not unneeded.intersection(seen["packages"]), "tens of megabytes"


TRIED = replace(CONFIG, vocab_size=8, num_layers=1, max_positions=32_768)
LIMITS = SchedulerLimits(prefill_tokens_per_step=512)


class TimedModel(PlainBackend):
    """Its clock moves by ``speed`` for each prompt row, and by ten times that the first time."""

    device = torch.device("cpu")
    dtype = torch.float32
    kv_format: KVFormat = "fp32"
    copies_context = False

    def __init__(self, speed: PrefillSpeed, *, copies_context: bool = False) -> None:
        self.config = replace(TRIED, sliding_window=speed.window_tokens)
        self.copies_context = copies_context
        self.now_s = 0.0
        self.prompt_rows: list[int] = []
        self.decode_rows: list[int] = []
        self.longest, self.most_copied = 0, 0
        """The context of any row so far; and slots of all rows' contexts, of any step."""
        self._speed = speed

    def new_kv(self, num_blocks: int, block_tokens: int, num_state_slots: int) -> Any:
        return SimpleNamespace(num_blocks=num_blocks, block_tokens=block_tokens)

    def forward(self, step: StepInput, kv: Any) -> torch.Tensor:
        self.longest = max(self.longest, step.longest_context)
        count = step.num_decodes
        if count:
            self.decode_rows.append(count)
            width = -(-int(step.context_lens[:count].max()) // kv.block_tokens)
            self.most_copied = max(self.most_copied, count * width * kv.block_tokens)
        if len(step.context_lens) > count:
            first_row = int(step.query_start[count])
            slots = step.slots[first_row:].tolist()
            assert len(set(slots)) == len(slots) and max(slots) < kv.num_blocks * kv.block_tokens
            end, num_rows = int(step.context_lens[-1]), int(step.query_start[-1]) - first_row
            start = end - int(step.query_start[-1] - step.query_start[-2])
            assert step.positions[start - end :].tolist() == list(range(start, end))
            first_time = 1 if self.prompt_rows else 10
            self.prompt_rows.append(num_rows)
            self.now_s += first_time * self._speed.span_s(start, end)
        rows = step.token_ids if step.logit_rows is None else step.logit_rows
        return torch.zeros(len(rows), TRIED.vocab_size)


def measured(model: TimedModel, context_tokens: int) -> PrefillSpeed:
    return measure_prefill(model, LIMITS, context_tokens, clock=lambda: model.now_s)


@each_case("window_tokens", [None, 2048])
@each_case("token_s", [0.01, 0.001, 0.00001])
def test_the_formula_is_found_again(token_s: float, window_tokens: int | None) -> None:
    speed = PrefillSpeed(token_s=token_s, growth_s=token_s / 3000, window_tokens=window_tokens)
    found = measured(TimedModel(speed), 32_768)
    for num_tokens in (100, 1000, 8192, 32_000):
        assert found.prompt_s(num_tokens) == pytest.approx(speed.prompt_s(num_tokens), rel=0.02)


def test_chunks_are_of_the_size_that_the_engine_would_run() -> None:
    for token_s, sizes in ((0.05, [32] * 2), (0.00001, [512] * 4)):
        model = TimedModel(PrefillSpeed(token_s=token_s))
        measured(model, 4096)
        assert model.prompt_rows[2:] == sizes
    speed = PrefillSpeed(token_s=0.01, growth_s=1e-6)
    model = TimedModel(speed)
    model.has_own_threads = True  # long chunks of native code are timed once
    run_largest_steps(model, LIMITS, 4096, 10**10)  # pays for first times
    model.prompt_rows = model.prompt_rows[:1]
    found = measured(model, 4096)
    assert model.prompt_rows[1:] == [32, 32]
    assert found.prompt_s(2000) == pytest.approx(speed.prompt_s(2000), rel=0.02)
    model = TimedModel(PrefillSpeed(token_s=0.001, growth_s=1e-7))
    found = measured(model, 20)  # a short context is timed at its start alone
    assert (max(model.prompt_rows), found.growth_s) == (20, 0)


SPEED = PrefillSpeed(token_s=0.001)


def test_the_largest_steps_are_the_engines_largest() -> None:
    model = TimedModel(SPEED)
    num_blocks = run_largest_steps(model, LIMITS, 32_768, 10**6)
    kv_bytes = model.cache_bytes(num_blocks, 32, NUM_LONE_STATES)
    assert kv_bytes == {model.device: (512 + 32) * kv_bytes_per_token(TRIED, "fp32")}
    for weight_bytes in (8 * 10**8, 10**12):  # a large one on a CPU is tried with fewer rows
        run_largest_steps(model, LIMITS, 32_768, weight_bytes)
    assert (model.prompt_rows, model.decode_rows) == ([512, 31, 16], [256, 31, 16])
    # Where contexts are copied, one is as long as may be, and many as are copied at once.
    model = TimedModel(SPEED, copies_context=True)
    run_largest_steps(model, LIMITS, 32_768, 10**6)
    assert (model.prompt_rows, model.longest) == ([512, 32], 32_768)
    assert model.most_copied * kv_bytes_per_token(TRIED, "fp32") >= MOST_GATHERED_BYTES
    for context_tokens in (20, 250):  # its prompt rows are then filled with several prompts
        for copies_context in (False, True):
            model = TimedModel(SPEED, copies_context=copies_context)
            run_largest_steps(model, LIMITS, context_tokens, 10**6)
            assert model.prompt_rows[0] == 512
            assert model.decode_rows == [256] * (1 + copies_context)
            assert model.longest <= -(-context_tokens // 32) * 32


def test_a_load_counts_what_sampling_takes() -> None:
    model, gauge, limits = TimedModel(SPEED), HostGauge(), SchedulerLimits(max_running=96)
    taken: list[int] = []
    for vocab_size in (8, 50_005):
        model.config = replace(model.config, vocab_size=vocab_size)
        spec = cpu_spec("none", max_context_tokens=64)
        trial = try_out(spec, model, TorchDrawer(), limits, gauge, 10**6, 64)  # type: ignore[arg-type]
        taken.append(trial.load_bytes)
    assert taken[1] - taken[0] > 2 * limits.max_running * 50_005 * 4
