"""What the engine process does about faults that are injected into its steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.engine.errors import EngineExit
from inference.engine.serving.loop import StepWatchdog
from inference.protocol.engine import (
    EngineFaulted,
    Idle,
    Loaded,
    SequenceFailed,
    SequenceStep,
    Shutdown,
    StepOutputs,
    SubmitSequence,
)
from inference.protocol.sampling import SamplingParams
from inference.settings.neuron import STEP_TIMEOUT_S
from tests.cases import each_case
from tests.inference.engine.faulty_executor import Kind
from tests.inference.engine.serving.test_process import EXIT_TIMEOUT_S, EngineProcess, started

pytestmark = pytest.mark.slow

FAULTY_ENGINE = "tests.inference.engine.faulty_executor"


def submit(engine: EngineProcess, sequence_id: str, first: int, max_tokens: int) -> None:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    token_ids = [first, 1, 2, 3]
    engine.send(SubmitSequence(sequence_id=sequence_id, token_ids=token_ids, params=params))


def ends_of(engine: EngineProcess, num_sequences: int) -> dict[str, str | None]:
    """Failure code or finish reason, by sequence."""
    ends: dict[str, str | None] = {}
    for message in engine.messages():
        for output in message.outputs if isinstance(message, StepOutputs) else []:
            if isinstance(output, SequenceFailed):
                ends[output.sequence_id] = output.code
            elif isinstance(output, SequenceStep) and output.finish_reason is not None:
                ends[output.sequence_id] = output.finish_reason
        if len(ends) == num_sequences:
            return ends
    raise AssertionError("unreachable: messages() never ends")


def test_on_a_sound_device_each_fails_alone(tiny_model_dir: Path, data_dir: Path) -> None:
    source = f"path:{tiny_model_dir}"
    with started(source, data_dir, module=FAULTY_ENGINE) as engine:
        assert isinstance(engine.wait_loaded(), Loaded)
        submit(engine, "good", 7, 40)
        submit(engine, "not a number", Kind.NOT_A_NUMBER, 40)
        submit(engine, "too large", Kind.TOO_LARGE, 40)
        submit(engine, "bad shape", Kind.BAD_SHAPE, 40)
        assert ends_of(engine, 4) == {
            "good": "length",
            "not a number": "numerical_error",
            "too large": "out_of_memory",
            "bad shape": "engine_error",
        }
        submit(engine, "afterwards", 7, 5)
        assert ends_of(engine, 1) == {"afterwards": "length"}
        # HELEXA_ENGINE_CHECKS is on: the accounting was found in order when it fell idle.
        idle = next(message for message in engine.messages() if isinstance(message, Idle))
        assert idle.stats.kv_blocks_used == 0
        engine.send(Shutdown())
        assert engine.process.wait(EXIT_TIMEOUT_S) == EngineExit.OK


@pytest.mark.parametrize(
    ("kind", "code", "exit_code", "logged"),
    [
        pytest.param(
            *(Kind.LOSES_THE_DEVICE, "device_fault", EngineExit.DEVICE_FAULT),
            "illegal memory access",
            marks=pytest.mark.slow,
        ),
        (Kind.HANGS, "engine_hung", EngineExit.HUNG, "faulty_executor.py"),
    ],
)
def test_what_it_cannot_survive_ends_it_by_its_name(
    tiny_model_dir: Path,
    data_dir: Path,
    tmp_path: Path,
    kind: Kind,
    code: str,
    exit_code: EngineExit,
    logged: str,
) -> None:
    log_file = tmp_path / "engine.log"
    with (
        log_file.open("wb") as stream,
        started(
            f"path:{tiny_model_dir}",
            data_dir,
            module=FAULTY_ENGINE,
            environment={"HELEXA_STEP_TIMEOUT_S": "2" if kind is Kind.HANGS else "60"},
            log_file=stream,
        ) as engine,
    ):
        assert isinstance(engine.wait_loaded(), Loaded)
        submit(engine, "good", 7, 200)
        submit(engine, "bad", kind, 200)
        last = next(m for m in engine.messages() if isinstance(m, EngineFaulted))
        assert last.code == code
        assert engine.process.wait(EXIT_TIMEOUT_S) == exit_code
    assert logged in log_file.read_text(), "the log names the place"


@each_case(("word", "seconds"), [(None, 120.0), ("", 120.0), ("7.5", 7.5), ("0", None)])
def test_the_timeout_is_the_operators(word: str | None, seconds: float | None) -> None:
    environment = {} if word is None else {"HELEXA_STEP_TIMEOUT_S": word}
    assert (STEP_TIMEOUT_S.read(environment) or None) == seconds


@each_case("word", ["soon", "-1", "nan", "inf"])
def test_a_timeout_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="HELEXA_STEP_TIMEOUT_S"):
        STEP_TIMEOUT_S.read({"HELEXA_STEP_TIMEOUT_S": word})


def test_without_a_timeout_nothing_watches() -> None:
    watchdog = StepWatchdog(None, lambda fault: pytest.fail("it watched"))
    watchdog.start()
    with watchdog.step():
        pass
