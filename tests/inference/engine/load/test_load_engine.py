"""A loaded engine has the queue, the KV format and the vision tower that its spec and files name;
its report says what its host lacks, and that it does not fit where it gets no memory. One that
slept answers as before, and holds nothing but its weights meanwhile."""

from __future__ import annotations

import errno
import functools
import json
import shutil
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import torch

from inference.engine import process
from inference.engine.errors import DoesNotFitError
from inference.engine.load import built_model
from inference.engine.load.build import warm_up
from inference.engine.load.load_engine import load_engine, load_warnings
from inference.engine.load.memory_use import anonymous_bytes
from inference.engine.load.sleeper import AwayWeights, Sleeper, storages_of
from inference.engine.loop import Served
from inference.loading import image_processor
from inference.models.errors import PositionError, UnsupportedKVError
from inference.models.layers import rope, step
from inference.models.native import model as native_model
from inference.models.step_input import StepInput, block_table_of
from inference.models.vision_config import KEPT_ROWS_BYTES
from inference.protocol.engine import SequenceFailed, StepOutputs
from inference.protocol.load_errors import BadSourceError
from inference.protocol.load_report import LoadProgress, LoadStage
from tests.cases import each_case
from tests.inference.engine.conftest import CONTEXT_TOKENS, Pair, answer_of, cpu_spec, run, submit
from tests.inference.models.vision.tiny_images import IMAGE_TOKEN
from tests.inference.models.vision.tiny_images import submit as submit_prompt
from tests.inference.models.vision.tiny_qwen import MERGE, PATCH_PX, PROCESSOR, QWEN3_VL
from tests.inference.reports import engine_stats

KV_MEMORY_BYTES = 4 * 1024**2


QUEUE = {"max_queue_depth": 4, "max_queue_share_percent": 100}


@each_case(
    ("queue", "kv_dtype", "context_tokens", "failed"),
    [
        (QUEUE | {"max_queue_depth": 2}, "fp32", 50, {"3": "queue_full"}),
        (QUEUE | {"max_queue_share_percent": 50}, "bf16", 128, {"3": "rate_limit_exceeded"}),
        (QUEUE | {"max_queue_wait_s": 0.0}, "int8", 50, dict.fromkeys("123", "queue_timeout")),
        (QUEUE | {"dtype": "bfloat16"}, "", 50, {}),  # on torch's operators
    ],
)
def test_queue_storage_and_context_are_those_of_the_spec(
    tiny_model_dir: Path,
    data_dir: Path,
    queue: dict[str, Any],
    kv_dtype: str,
    context_tokens: int,
    failed: dict[str, str],
) -> None:
    bounds = {"max_concurrent_sequences": 1, "max_context_tokens": context_tokens}
    stored = {"kv_dtype": kv_dtype} if kv_dtype else {}
    spec = cpu_spec(tiny_model_dir, kv_memory_bytes=KV_MEMORY_BYTES, **bounds, **stored, **queue)
    reported: list[LoadProgress] = []
    loaded: Any = load_engine(spec, data_dir, reported.append)
    engine, report = loaded.engine, loaded.report
    for number in range(4):
        submit(engine, str(number), [1], 1, account="a")
    assert run(engine).failed == failed
    steps = [one for one in reported if one.stage is LoadStage.WARMUP]
    assert {one.unit for one in steps} == {"steps"}
    (total,) = {one.total for one in steps}
    assert [one.done for one in steps] == list(range(total)) and total > 3
    assert report.context_tokens == context_tokens
    assert 40 + len(answer_of(loaded, [*range(1, 41)], context_tokens)) == context_tokens
    if kv_dtype and report.compiled.startswith("native"):
        assert report.kv_dtype == kv_dtype
        vector_bytes = {"fp32": 4 * 16, "bf16": 2 * 16, "int8": 16 + 4}[kv_dtype]
        layers, kv_heads, block_tokens = 3, 2, 32
        block_bytes = 2 * layers * kv_heads * block_tokens * vector_bytes
        assert report.kv_bytes == report.num_kv_blocks * block_bytes


def test_what_the_host_or_its_path_lacks(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    (warning,) = load_warnings(torch.device("cuda:0"))
    assert "C compiler" in warning
    assert load_warnings(torch.device("cpu")) == [], "nothing there is built with Triton"
    refuse = Mock(side_effect=UnsupportedKVError("kv_dtype int8 is not built there"))
    monkeypatch.setattr(built_model, "build_fastest_model", refuse)
    with pytest.raises(BadSourceError, match="kv_dtype int8 is not built there"):
        load_engine(cpu_spec(tiny_model_dir, kv_dtype="int8"), tmp_path, lambda _: None)


@each_case(
    ("error", "code"),
    [
        (MemoryError("no memory for a native decoder of 2 threads"), "does_not_fit"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "does_not_fit"),
        (OSError(errno.EIO, "Input/output error"), "engine_crashed"),
    ],
    ids=repr,
)
def test_a_load_or_first_steps_without_memory_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(process, "load_engine", Mock(side_effect=error))
    monkeypatch.setattr(process, "configure_threads", lambda: None)
    messenger: Any = SimpleNamespace(send=sent.append)
    assert process._load(cpu_spec("none"), messenger) is None
    assert sent[-1].failure.code == code

    def step() -> StepOutputs:
        name = sent[-1].sequence_id
        failed = SequenceFailed(sequence_id=name, code="out_of_memory", message="no memory")
        return StepOutputs(outputs=[failed], stats=engine_stats())

    engine: Any = SimpleNamespace(has_work=True, submit=sent.append, step=step)
    with pytest.raises(DoesNotFitError):
        warm_up(engine, 100, lambda _: None)


@each_case("dtype", ["bfloat16", "float32"], ids=["torch", "native"])
def test_a_declared_context_is_a_claim_that_memory_bounds(
    tiny_model_dir: Path, data_dir: Path, tmp_path: Path, dtype: Any, monkeypatch: Any
) -> None:
    """Angles of sixteen million positions would take gigabytes."""
    path = shutil.copytree(tiny_model_dir, tmp_path / "claiming") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 2**24}))
    table_of = Mock(side_effect=rope.rope_table)
    for user in (native_model, step):
        monkeypatch.setattr(user, "rope_table", table_of)
    spec = cpu_spec(path.parent, dtype=dtype, kv_memory_bytes=KV_MEMORY_BYTES)
    report = load_engine(spec, data_dir, lambda _: None).report
    longest = max(call.args[1] for call in table_of.call_args_list)
    assert 1000 < report.context_tokens <= longest < 30_000
    assert "bound by KV memory, the model's own are 16,777,216" in report.context_reason


def test_a_step_beyond_the_angles_is_refused_before_it_writes(llama: Pair) -> None:
    model, size = llama.model, llama.block_tokens
    num_blocks = CONTEXT_TOKENS // size + 1
    kv = model.new_kv(num_blocks, size)
    for beyond in (
        StepInput.of_sequence([0] * size, size, start=CONTEXT_TOKENS),
        StepInput.of_decodes([0], [CONTEXT_TOKENS], block_table_of([range(num_blocks)]), size),
    ):
        with pytest.raises(PositionError):
            model.forward(beyond, kv)
    tensors = [kv.keys, kv.values] if hasattr(kv, "keys") else [x.entries for x in kv.layers]
    assert not any(bool(tensor.any()) for tensor in tensors)
    whole = StepInput.of_sequence([0] * CONTEXT_TOKENS, size)
    assert bool(model.forward(whole, kv).isfinite().all()), "up to them it is computed"


def test_without_pillow_it_is_a_text_model(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = cpu_spec(QWEN3_VL.save(tmp_path / "qwen3_vl"), kv_memory_bytes=2**21)
    seeing = load_engine(spec, data_dir, lambda _: None).report
    bounds = [PROCESSOR["size"][edge] for edge in ("shortest_edge", "longest_edge")]
    assert seeing.vision is not None
    vision = msgspec.structs.astuple(seeing.vision)
    assert vision == (IMAGE_TOKEN, PATCH_PX, MERGE, *bounds, *vision[5:])
    assert seeing.actual_bytes > KEPT_ROWS_BYTES < seeing.estimated_bytes
    monkeypatch.setattr(image_processor, "find_spec", lambda name: None)
    found: Any = load_engine(spec, data_dir, lambda _: None)
    assert found.report.vision is None
    submit_prompt(found.engine, "it", QWEN3_VL.prompt([5], (b"1", 2, 2), [6]), 3)
    (refused,) = found.engine.step().outputs
    assert isinstance(refused, SequenceFailed) and refused.code == "vision_unsupported"
    assert "no images: Pillow is not installed" in found.report.quantization


def answer(served: Any) -> tuple[list[int], int]:
    """Tokens, and how many of the prompt's came from the prefix cache."""
    submit(served.engine, "a", [(7 * n) % 100 + 1 for n in range(100)])
    found = run(served.engine)
    return found.tokens["a"], found.cached["a"]


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"], ids=["native", "torch operators"])
def test_answers_are_the_same_and_the_prefix_cache_is_not_kept(
    dtype: str, tiny_model_dir: Path, data_dir: Path
) -> None:
    spec = cpu_spec(tiny_model_dir, kv_memory_bytes=32_000_000, dtype=dtype)
    loaded = load_engine(spec, data_dir, lambda progress: None)
    report = loaded.report
    assert ("native" in report.compiled) == (dtype == "auto")
    served = Served(loaded)
    before, _ = answer(served)
    assert answer(served) == (before, 96), "three blocks of its prompt are known"
    engine = weakref.ref(loaded.engine)
    del loaded
    for _ in range(2):
        held = served.fall_asleep().held
        assert engine() is None, "its keys and values went with it"
        assert report.asleep is not None
        assert held.host_bytes == 0 < held.device_bytes
        assert held.device_bytes <= anonymous_bytes() + 64_000_000
        assert served.stats().kv_blocks_total == 0
        served.wake()
        assert served.engine is not None
        assert served.stats().kv_blocks_total == report.num_kv_blocks
        assert answer(served) == (before, 0)
        engine = weakref.ref(served.engine)
    served.wake()
    assert served.engine is engine(), "one that is awake stays as it is"
    assert served.stats().warnings == []
    assert served._sleeper is not None
    served._sleeper._own._away.problem = "pages are not locked"
    for act in (served.fall_asleep, served.wake):
        act()
        assert served.stats().warnings == ["pages are not locked"]


@dataclass(slots=True, eq=False)
class Slotted:
    weight: torch.Tensor


class Holder:
    """Tensors in all the places where models have them."""

    def __init__(self) -> None:
        self.plain = torch.arange(6.0)
        self.view = self.plain[2:4]
        self.listed: list[Any] = [torch.ones(3), {"named": torch.full((2, 2), 7.0)}]
        self.slotted = Slotted(torch.zeros(5, dtype=torch.int8))
        self.module = torch.nn.Linear(3, 2)
        bound = torch.full((4,), 3.0)
        self.closure = lambda: bound
        self.partial = functools.partial(torch.add, torch.full((2,), 9.0))
        self.method = Slotted(torch.ones(1)).__repr__
        self.itself = self

    def values(self) -> list[torch.Tensor]:
        held = [self.plain, self.view, self.listed[0], self.listed[1]["named"], self.closure()]
        own = [self.slotted.weight, self.module.weight, self.module.bias, self.partial.args[0]]
        return held + own


class Card:
    """The processor as a card: its runtime remembers the error of a refused call until a launch
    raises it, as cudart does."""

    type = "cuda"
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refuses: str) -> None:
        """``refuses``: the call that gives an error."""
        self.locked: dict[int, int] = {}
        self._refuses, self._error = refuses, 0
        cudart = SimpleNamespace(cudaHostRegister=self.register, cudaHostUnregister=self.unregister)
        zeros = torch.zeros
        monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: self._check())
        monkeypatch.setattr(torch, "zeros", lambda size, device: (self._check(), zeros(size))[1])

    def __eq__(self, other: object) -> bool:
        return other == torch.device("cpu")

    def register(self, address: int, num_bytes: int, flags: int) -> int:
        self._error = 2 * (self._refuses == "register")
        self.locked |= {} if self._error else {address: num_bytes}
        return self._error

    def unregister(self, address: int) -> int:
        assert self.locked.pop(address)
        self._error = 2 * (self._refuses == "unregister")
        return self._error

    def _check(self) -> None:
        error, self._error = self._error, 0
        if error:
            raise torch.AcceleratorError("CUDA error: out of memory")


@each_case("refuses", ["", "register", "unregister"])
def test_tensors_leave_and_come_back_where_they_were(
    refuses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each buffer is page-locked once, as a whole, where the card can, and unlocked when its
    weights are back. Emptying and filling storages is the same on the processor."""
    model = Holder()
    before = [value.detach().clone() for value in model.values()]
    assert len(storages_of(model, torch.device("cpu"))) == len(before), "a view shares"
    card = Card(monkeypatch, refuses)
    away = AwayWeights(model, card)  # type: ignore[arg-type]
    for _ in range(2):
        away.take()
        assert away.num_bytes == sum(value.nbytes for value in before) - 2 * 4 + 4
        assert all(value.untyped_storage().nbytes() == 0 for value in model.values())
        assert refuses or sum(card.locked.values()) == away.num_bytes
        away.restore()
        assert away.num_bytes == 0
        torch.cuda.synchronize(torch.device("cpu"))
        assert all(torch.equal(a, b) for a, b in zip(model.values(), before, strict=True))
    assert ("waking takes longer" in away.problem) == bool(refuses)
    assert refuses or away.problem == ""
    assert card.locked == {}


def test_steps_that_waking_did_not_capture_again_are_reported() -> None:
    captured, missed = "decode steps of up to 8 rows in CUDA graphs", "no CUDA graphs (OutOfMemory)"
    model: Any = SimpleNamespace(device=torch.device("cpu"), capture_in_words=captured)
    model.sleep = lambda: setattr(model, "capture_in_words", "no CUDA graphs yet")
    model.wake = lambda: None

    def build() -> Any:
        model.capture_in_words = missed if fails else captured
        return SimpleNamespace(load_warnings=[], close=lambda: None)

    sleeper = Sleeper([model], build, process_bytes=0, captures=[model])
    served = Served(SimpleNamespace(engine=None, sleeper=sleeper))  # type: ignore[arg-type]
    lost = f"after waking: {missed} where the load had {captured}"
    for fails in (False, True, True, False):
        sleeper.fall_asleep()
        served.engine = None
        assert served.wake().capture_problem == (lost if fails else "")
        assert served.engine is not None
        assert served.engine.load_warnings == ([lost] if fails else [])
