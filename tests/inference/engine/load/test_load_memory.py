"""A load that gets no memory reports that the model does not fit, whichever part of it asked."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import torch

from inference.engine.errors import DoesNotFitError
from inference.engine.load.build import warm_up
from inference.engine.serving import process
from inference.protocol.engine import SequenceFailed, StepOutputs
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadFailure
from tests.cases import each_case
from tests.inference.reports import engine_stats

STATS = engine_stats()


def no_memory_of_torch() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)


def no_memory_of_the_native_decoder() -> None:
    raise MemoryError("no memory for a native decoder of 2 threads")


def no_pages() -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def something_else() -> None:
    raise OSError(errno.EIO, "Input/output error")


@each_case(
    ("fails", "code"),
    [
        (no_memory_of_torch, "does_not_fit"),
        (no_memory_of_the_native_decoder, "does_not_fit"),
        (no_pages, "does_not_fit"),
        (something_else, "engine_crashed"),
    ],
)
def test_a_load_without_memory_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, fails: Any, code: str
) -> None:
    sent: list[Any] = []

    class Messenger:
        def send(self, message: Any) -> None:
            sent.append(message)

    monkeypatch.setattr(process, "load_engine", lambda *_, **__: fails())
    monkeypatch.setattr(process, "configure_threads", lambda: None)
    spec = LoadSpec(job_id="1", model="tiny", source="path:none")
    assert process._load(spec, Messenger()) is None  # type: ignore[arg-type]
    failure: LoadFailure = sent[-1].failure
    assert failure.code == code


def test_first_steps_without_memory_report_it() -> None:
    class Engine:
        has_work = True

        def submit(self, command: Any) -> None:
            self.sequence_id = command.sequence_id

        def step(self) -> StepOutputs:
            failed = SequenceFailed(
                sequence_id=self.sequence_id, code="out_of_memory", message="no memory"
            )
            return StepOutputs(outputs=[failed], stats=STATS)

    with pytest.raises(DoesNotFitError):
        warm_up(Engine(), 100, lambda _: None)  # type: ignore[arg-type]
