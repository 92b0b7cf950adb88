"""A model that two ranks share, on a whole neuron but for Celery: whichever rank dies or stands
still, what runs fails once, and the model comes back."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tokenizers import Tokenizer

from inference.backoff import Backoff
from inference.engine.ranks.smoke import save_model
from inference.neuron.replicas.retries import RestartPolicy
from inference.neuron.service import NeuronService
from inference.protocol.events import Failed, Finished
from inference.protocol.load import LoadSpec
from tests.processes import command_line

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

FOLLOWER = "inference.engine.ranks.follower"
STEP_TIMEOUT_S = 5
SILENCE_LIMIT_S = 10.0
LIMIT_S = 1800
LONG = 8000
"""Tokens: tens of seconds of decoding, which the test does not wait for."""


@pytest.fixture
def engine_command() -> list[str]:
    return [sys.executable, "-m", "inference.engine"]


@pytest.fixture
def model_dir(tmp_path: Path, byte_level_dir: Path) -> Path:
    tokenizer = Tokenizer.from_file(str(byte_level_dir / "tokenizer.json"))
    directory = save_model(
        tmp_path / "model",
        2,
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=2 * LONG,
    )
    for file in byte_level_dir.iterdir():
        if file.name != "config.json":
            shutil.copy(file, directory)
    return directory


def ranks() -> dict[int, psutil.Process]:
    found = {}
    for child in psutil.Process().children(recursive=True):
        command = command_line(child)
        if FOLLOWER in command:
            found[1] = child
        elif "inference.engine" in command:
            found[0] = child
    return found


def test_whichever_rank_is_lost_the_model_comes_back(
    make_service: Callable[..., NeuronService],
    gateway: Any,
    model_dir: Path,
    tmp_path: Path,
    wait_until: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway.stay_alive(LIMIT_S)
    monkeypatch.setenv("HELEXA_STEP_TIMEOUT_S", str(STEP_TIMEOUT_S))
    monkeypatch.setenv("HELEXA_ENGINE_THREADS", "2")
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path / "data"))
    service = make_service(
        silence_limit_s=SILENCE_LIMIT_S,
        restart_policy=RestartPolicy(
            backoff=Backoff(first_s=0.01, max_s=30.0), max_quick_failures=9
        ),
    )
    service.load_model(
        LoadSpec(
            job_id="j",
            model="m",
            source=f"path:{model_dir}",
            devices=["cpu"],
            tensor_parallel=2,
            kv_memory_bytes=64 * 1024**2,
        )
    )
    cases = [
        (1, signal.SIGKILL, "device_fault"),
        (0, signal.SIGKILL, "engine_crashed"),
        (1, signal.SIGSTOP, "engine_hung"),
        (0, signal.SIGSTOP, "engine_hung"),
    ]
    for num_restarts, (rank, how, code) in enumerate(cases):
        wait_until(lambda: gateway.wait_status("ready").num_restarts == num_restarts)  # noqa: B023
        before = ranks()
        assert set(before) == {0, 1}
        wanted = {"max_tokens": LONG, "ignore_eos": True}
        request_id = gateway.submit(deadline_s=LIMIT_S, **wanted)
        service.drain_inbox()
        gateway.wait_events(request_id, lambda events: len(events) > 2)
        before[rank].send_signal(how)
        events = gateway.wait_end(request_id)
        assert [e.failure.code for e in events if isinstance(e, Failed)] == [code]
        psutil.wait_procs(before.values(), timeout=60)
        assert not any(process.is_running() for process in before.values())
    wait_until(lambda: gateway.wait_status("ready").num_restarts == len(cases))
    request_id = gateway.submit(max_tokens=3)
    service.drain_inbox()
    assert isinstance(gateway.wait_end(request_id)[-1], Finished)
