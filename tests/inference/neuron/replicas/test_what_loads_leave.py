"""A neuron keeps nothing of a model that it has unloaded: each load is a process of its own, and
what the neuron itself had of it is freed, a failed one's traceback too."""

from __future__ import annotations

import gc
import threading
from collections import Counter

import pytest

from inference.neuron.replicas import engine_run
from inference.neuron.replicas.engine_process import EngineProcess
from inference.neuron.replicas.replica import Replica
from inference.neuron.text.model_text import ModelText
from inference.text.tokens.tokenizer import Tokenizer
from tests.inference.neuron.conftest import TestNeuron, wait_until

pytestmark = pytest.mark.slow

KINDS = (ModelText, Tokenizer, Replica, EngineProcess)


def left() -> Counter[str]:
    gc.collect()
    return Counter(type(there).__name__ for there in gc.get_objects() if type(there) in KINDS)


def test_models_that_were_unloaded_leave_nothing(
    neuron: TestNeuron, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Objects that are exempt from collections would be neither found nor freed here.
    monkeypatch.setattr(engine_run, "freeze_heap", lambda: None)

    def load_and_unload(name: str, **options: float) -> None:
        if options:
            neuron.refused(name, **options)
        else:
            neuron.load(name)
            assert neuron.answers(name)
        neuron.service.unload_model(name)
        neuron.wait_gone(name)

    load_and_unload("first")
    before, threads = left(), threading.active_count()
    for index in range(6):
        load_and_unload(f"m{index}")
        load_and_unload(f"bad{index}", load_fails=1)
    wait_until(lambda: left() <= before)
    wait_until(lambda: threading.active_count() <= threads)
