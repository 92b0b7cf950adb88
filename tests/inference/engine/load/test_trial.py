"""What a model's first steps measure, on a model whose steps take a set time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from inference.engine.load.trial import measure_prefill, run_largest_steps
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.models.backend import PlainBackend
from inference.models.cache.kv_format import KVFormat, kv_bytes_per_token
from inference.models.config import ModelConfig
from inference.models.layers.attention import MOST_GATHERED_BYTES
from inference.models.step_input import NUM_LONE_STATES, StepInput
from inference.protocol.load import PrefillSpeed
from tests.cases import each_case
from tests.inference.engine.conftest import Pair

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=8,
    hidden_size=64,
    intermediate_size=64,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_positions=32_768,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
)
KV_BYTES_PER_TOKEN = kv_bytes_per_token(CONFIG, "fp32")
LIMITS = SchedulerLimits(prefill_tokens_per_step=512)


@dataclass
class FakeKV:
    num_blocks: int
    block_tokens: int


class TimedModel(PlainBackend):
    """Its clock moves by ``speed`` for each prompt row, and by ten times that the first time."""

    device = torch.device("cpu")
    dtype = torch.float32
    kv_format: KVFormat = "fp32"

    def __init__(self, speed: PrefillSpeed, *, copies_context: bool = False) -> None:
        self.config = replace(CONFIG, sliding_window=speed.window_tokens)
        self.copies_context = copies_context
        self.now_s = 0.0
        self.prompt_rows: list[int] = []
        self.decode_rows: list[int] = []
        self.longest = 0
        """Context of any row so far."""
        self.most_copied = 0
        """Slots of all rows' contexts, of any step so far."""
        self._speed = speed

    def new_kv(self, num_blocks: int, block_tokens: int, num_state_slots: int) -> FakeKV:
        return FakeKV(num_blocks, block_tokens)

    def forward(self, step: StepInput, kv: FakeKV) -> torch.Tensor:
        self.longest = max(self.longest, step.longest_context)
        count = step.num_decodes
        if count:
            self.decode_rows.append(count)
            width = -(-int(step.context_lens[:count].max()) // kv.block_tokens)
            self.most_copied = max(self.most_copied, count * width * kv.block_tokens)
        if len(step.context_lens) > count:
            self._prefill(step, kv)
        rows = step.token_ids if step.logit_rows is None else step.logit_rows
        return torch.zeros(len(rows), CONFIG.vocab_size)

    def _prefill(self, step: StepInput, kv: FakeKV) -> None:
        first_prompt_row = int(step.query_start[step.num_decodes])
        slots = step.slots[first_prompt_row:]
        assert slots.max() < kv.num_blocks * kv.block_tokens
        assert len(set(slots.tolist())) == len(slots)
        for index in range(step.num_decodes, len(step.context_lens)):
            first_row, last_row = step.query_start[index : index + 2].tolist()
            end = int(step.context_lens[index])
            start = end - (last_row - first_row)
            positions = step.positions[first_row:last_row]
            assert positions.tolist() == list(range(start, end))
            blocks = step.block_table[index, positions // kv.block_tokens]
            own_slots = blocks * kv.block_tokens + positions % kv.block_tokens
            assert step.slots[first_row:last_row].tolist() == own_slots.tolist()
        first_time = 1 if self.prompt_rows else 10
        self.prompt_rows.append(last_row - first_prompt_row)
        self.now_s += first_time * self._speed.span_s(start, end)


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
    slow, fast = PrefillSpeed(token_s=0.05), PrefillSpeed(token_s=0.00001)
    for speed, sizes in ((slow, [32] * 2), (fast, [512] * 4)):
        model = TimedModel(speed)
        measured(model, 4096)
        assert model.prompt_rows[2:] == sizes


def test_long_chunks_of_native_code_are_timed_once() -> None:
    speed = PrefillSpeed(token_s=0.01, growth_s=1e-6)
    model = TimedModel(speed)
    model.has_own_threads = True
    run_largest_steps(model, LIMITS, 4096, 10**10)  # pays for first times
    model.prompt_rows = model.prompt_rows[:1]
    found = measured(model, 4096)
    assert model.prompt_rows[1:] == [32, 32]
    assert found.prompt_s(2000) == pytest.approx(speed.prompt_s(2000), rel=0.02)


def test_a_short_context_is_timed_at_its_start_alone() -> None:
    model = TimedModel(PrefillSpeed(token_s=0.001, growth_s=1e-7))
    found = measured(model, 20)
    assert max(model.prompt_rows) == 20
    assert found.growth_s == 0


def test_the_largest_steps_are_the_engines_largest() -> None:
    model = TimedModel(PrefillSpeed(token_s=0.001))
    num_blocks = run_largest_steps(model, LIMITS, 32_768, 10**6)
    assert (model.prompt_rows, model.decode_rows) == ([512], [256])
    kv_bytes = model.cache_bytes(num_blocks, 32, NUM_LONE_STATES)
    assert kv_bytes == {model.device: (512 + 32) * KV_BYTES_PER_TOKEN}


def test_a_large_model_on_a_cpu_is_tried_with_fewer_rows() -> None:
    model = TimedModel(PrefillSpeed(token_s=0.001))
    run_largest_steps(model, LIMITS, 32_768, 8 * 10**8)
    assert (model.prompt_rows, model.decode_rows) == ([31], [31])
    run_largest_steps(model, LIMITS, 32_768, 10**12)
    assert (model.prompt_rows[-1], model.decode_rows[-1]) == (16, 16)


@each_case("context_tokens", [20, 64, 250])
@each_case("copies_context", [False, True])
def test_a_short_context_makes_no_step_smaller(context_tokens: int, copies_context: bool) -> None:
    """The engine fills its prompt rows with several prompts then, none beyond its context."""
    model = TimedModel(PrefillSpeed(token_s=0.001), copies_context=copies_context)
    run_largest_steps(model, LIMITS, context_tokens, 10**6)
    assert model.prompt_rows[0] == 512
    assert model.decode_rows == [256] * (2 if copies_context else 1)
    assert model.longest <= -(-context_tokens // 32) * 32


def test_where_contexts_are_copied_one_is_as_long_as_may_be_and_many_as_are_copied_at_once() -> (
    None
):
    model = TimedModel(PrefillSpeed(token_s=0.001), copies_context=True)
    run_largest_steps(model, LIMITS, 32_768, 10**6)
    assert model.prompt_rows == [512, 32]
    assert model.longest == 32_768
    assert model.most_copied * KV_BYTES_PER_TOKEN >= MOST_GATHERED_BYTES


def test_on_a_real_model(llama: Pair) -> None:
    assert run_largest_steps(llama.model, LIMITS, 256, 10**5) > 0
    speed = measure_prefill(llama.model, LIMITS, 256)
    assert speed.token_s > 0
    assert speed.growth_s >= 0
