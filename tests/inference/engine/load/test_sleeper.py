"""A model that slept answers as before, and holds nothing but its weights meanwhile."""

from __future__ import annotations

import functools
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.load.load_engine import load_engine
from inference.engine.load.memory_use import anonymous_bytes
from inference.engine.load.sleeper import AwayWeights, Sleeper, storages_of
from inference.engine.serving.loop import Served
from tests.cases import each_case
from tests.inference.engine.asking import cpu_spec, run, submit

PROMPT = [(7 * n) % 100 + 1 for n in range(100)]


def answer(served: Served) -> tuple[list[int], int]:
    """Tokens, and how many of the prompt's came from the prefix cache."""
    assert isinstance(served.engine, Engine)
    submit(served.engine, "a", PROMPT)
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


class Slotted:
    __slots__ = ("weight",)

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight


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


def test_tensors_leave_and_come_back_where_they_were() -> None:
    """The processor is the device: emptying and filling storages is the same on a card."""
    model, device = Holder(), torch.device("cpu")
    before = [value.detach().clone() for value in model.values()]
    assert len(storages_of(model, device)) == len(before), "a view shares; the method's is one more"
    away = AwayWeights(model, device)
    away.take()
    assert away.num_bytes == sum(value.nbytes for value in before) - model.view.nbytes + 4
    assert all(value.untyped_storage().nbytes() == 0 for value in model.values())
    away.restore()
    assert away.num_bytes == 0
    assert all(torch.equal(a, b) for a, b in zip(model.values(), before, strict=True))


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
        self._error = 2 if self._refuses == "register" else 0
        if not self._error:
            self.locked[address] = num_bytes
        return self._error

    def unregister(self, address: int) -> int:
        assert self.locked.pop(address)
        self._error = 2 if self._refuses == "unregister" else 0
        return self._error

    def _check(self) -> None:
        error, self._error = self._error, 0
        if error:
            raise torch.AcceleratorError("CUDA error: out of memory")


@each_case("refuses", ["", "register", "unregister"])
def test_pages_are_locked_while_they_are_away_where_the_card_can(
    refuses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each buffer is page-locked once, as a whole, and unlocked when its weights are back."""
    model = Holder()
    before = [value.detach().clone() for value in model.values()]
    card = Card(monkeypatch, refuses)
    away = AwayWeights(model, card)  # type: ignore[arg-type]
    for _ in range(2):
        away.take()
        assert refuses or sum(card.locked.values()) == away.num_bytes > 0
        away.restore()
        torch.cuda.synchronize(torch.device("cpu"))
        assert all(torch.equal(a, b) for a, b in zip(model.values(), before, strict=True))
    assert ("waking takes longer" in away.problem) == bool(refuses)
    assert refuses or away.problem == ""
    assert card.locked == {}


def test_steps_that_waking_did_not_capture_again_are_reported() -> None:
    captured, missed = "decode steps of up to 8 rows in CUDA graphs", "no CUDA graphs (OutOfMemory)"
    model: Any = SimpleNamespace(
        device=torch.device("cpu"),
        capture_in_words=captured,
        sleep=lambda: setattr(model, "capture_in_words", "no CUDA graphs yet"),
        wake=lambda: None,
    )

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
