"""What the first hour finds wrong with an engine that woke."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.first_hour import checks
from benchmarks.first_hour.state import read_facts
from inference.protocol.engine import Awake, FellAsleep
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import AsleepBytes

SPEC = LoadSpec(job_id="1", model="m", source="path:/m", devices=["cpu"])


class FakeEngine:
    """Answers with one token before it sleeps, and with ``token_after`` once it woke."""

    awake = Awake(seconds=0.1)
    token_after = 7
    report = SimpleNamespace(process_bytes=1, actual_bytes=2)

    def __init__(self, spec: LoadSpec) -> None:
        self.token, self.has_ended = 7, False

    def first_token(self, prompt: list[int]) -> int:
        return self.token

    def sleep(self) -> tuple[float, FellAsleep]:
        return 0.1, FellAsleep(held=AsleepBytes(device_bytes=1))

    def wake(self) -> Awake:
        self.token = self.token_after
        return self.awake

    def end(self) -> None:
        self.has_ended = True


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> type[FakeEngine]:
    class Engine(FakeEngine):
        pass

    monkeypatch.setattr(checks, "EngineUnderTest", Engine)
    return Engine


def test_an_engine_that_wakes_as_it_was_is_measured(
    engine: type[FakeEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    assert checks.check_wake(SPEC)
    facts = read_facts(capsys.readouterr().out)
    assert (facts["awake_bytes"], facts["asleep_device_bytes"]) == (3, 1)


def test_steps_that_are_not_captured_again_end_it(engine: type[FakeEngine]) -> None:
    engine.awake = Awake(seconds=0.1, capture_problem="after waking: no CUDA graphs (Error)")
    with pytest.raises(RuntimeError, match=r"^after waking: no CUDA graphs \(Error\)$"):
        checks.check_wake(SPEC)


def test_another_answer_ends_it(engine: type[FakeEngine]) -> None:
    engine.token_after = 8
    with pytest.raises(RuntimeError, match="answers otherwise"):
        checks.check_wake(SPEC)
