"""Stages of other neurons answer what the undivided model answers, wherever they are in the order:
to the bit where its dtype is float32, else what its stages answer when rows are rounded where they
leave a host. And what they report to their own neurons."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.engine.engine import Engine
from inference.engine.load.load_engine import LoadedEngine
from inference.engine.stages import stage_processes, stage_runner
from inference.engine.stages.stage_specs import are_narrow
from inference.protocol.engine import (
    SequenceStep,
    StageAlive,
    StageReady,
    StageReleased,
    SubmitSequence,
)
from inference.protocol.sampling import SamplingParams
from tests.inference.engine.stages.loads import PROMPT, answers, close_all, load, spec_of
from tests.inference.engine.stages.remote_stages import HERE, last_messages, remote_stages

pytestmark = pytest.mark.slow

EXACT = {"dtype": "float32"}
"""The setting with which rows to other hosts are not rounded: a CPU computes alike without it."""


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory, native_cache_dir: Path) -> Path:
    directory = tmp_path_factory.mktemp("remote")
    (directory / "cache").mkdir()
    (directory / "cache" / "native").symlink_to(native_cache_dir)
    return directory


def test_a_stage_of_another_neuron_answers_as_one(tiny_model_dir: Path, data_dir: Path) -> None:
    expected = load(spec_of(tiny_model_dir), data_dir)
    with remote_stages(tiny_model_dir, data_dir, [HERE, "b"], 1, 3, **EXACT) as there:
        loaded = load(there.spec, data_dir)
        assert answers(loaded) == answers(expected)
        ready = there.message(StageReady)
        assert isinstance(ready, StageReady)
        report = loaded.report
        assert report.stages[1] == ready.report and ready.report.neuron == "b"
        (memory,) = report.stage_memory
        assert memory.device == report.device == ready.memory.device == "cpu"
        assert memory.actual_bytes == report.actual_bytes
        assert ready.memory.actual_bytes > ready.report.kv_bytes > 0
        assert ready.memory.process_bytes > 0
        assert report.asleep is None, "it does not sleep"
        there.message(StageAlive)
        close_all()
        released = last_messages(there.stages[0])[-1]
        assert isinstance(released, StageReleased), released
        assert there.stages[0].process.wait(30) == 0


ORDERS = {
    "from here to another": ([HERE, HERE, "b"], (1, 2, 3)),
    "back from another": ([HERE, "b", HERE], (1, 2, 3)),
    "from another to a third": ([HERE, "b", "c"], (1, 2, 3)),
}


@pytest.mark.parametrize(("neurons", "ends"), ORDERS.values(), ids=ORDERS)
def test_in_any_order(
    tiny_model_dir: Path, data_dir: Path, neurons: list[str], ends: tuple[int, ...]
) -> None:
    expected = answers(load(spec_of(tiny_model_dir), data_dir))
    with remote_stages(tiny_model_dir, data_dir, neurons, *ends, **EXACT) as there:
        loaded = load(there.spec, data_dir)
        assert [stage.neuron for stage in loaded.report.stages] == neurons
        assert answers(loaded) == expected
        close_all()


@pytest.mark.parametrize(
    ("neurons", "ends"),
    [*ORDERS.values(), ([HERE, "b", "b"], (1, 2, 3))],
    ids=[*ORDERS, "beside each other"],
)
def test_rows_are_rounded_where_they_leave_a_host(
    tiny_model_dir: Path,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    neurons: list[str],
    ends: tuple[int, ...],
) -> None:
    """Scores are those of stages of one host whose rows are rounded there, to the bit. They are
    nearer to the exact ones than those of a model that computes in bfloat16, as cards do."""
    exact = scores(load(spec_of(tiny_model_dir, *ends), data_dir))
    computed = scores(load(spec_of(tiny_model_dir, *ends, dtype="bfloat16"), data_dir))
    with remote_stages(tiny_model_dir, data_dir, neurons, *ends) as there:
        found = scores(load(there.spec, data_dir))
        close_all()
    for module in (stage_processes, stage_runner):
        monkeypatch.setattr(module, "are_narrow", lambda _, index: are_narrow(there.spec, index))
    assert found == scores(load(spec_of(tiny_model_dir, *ends), data_dir))
    assert 0 < distance(found, exact) < distance(computed, exact)


def distance(found: list[float], exact: list[float]) -> float:
    return sum(abs(a - b) for a, b in zip(found, exact, strict=True)) / len(exact)


def scores(loaded: LoadedEngine) -> list[float]:
    """The log probabilities of a prompt's tokens, and of its answer's first."""
    engine = loaded.engine
    assert isinstance(engine, Engine)
    params = SamplingParams(max_tokens=1, temperature=0.0, top_logprobs=0, prompt_logprobs=0)
    engine.submit(SubmitSequence(sequence_id="scored", token_ids=PROMPT, params=params))
    found: list[float] = []
    while engine.has_work:
        for output in engine.step().outputs:
            assert isinstance(output, SequenceStep), output
            parts = [*(output.prompt_logprobs or []), *(output.logprobs or [])]
            found += [one.logprob for one in parts if one.logprob is not None]
    return found
