"""What a load takes is what its process then holds; a second load knows what the first one took,
and how fast requests were."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pynvml
import pytest
import torch

from inference.channel import Channel
from inference.engine.load import memory_use
from inference.engine.load.memory_use import HostGauge, anonymous_bytes, gauge_for
from inference.models.cache.paged_kv import lazy_zeros
from inference.protocol.engine import Loaded, LoadProgressed, decode_engine_message
from inference.protocol.load import EarlierLoads, PrefillSpeed
from inference.protocol.load_report import LoadReport
from tests.cases import each_case
from tests.inference.engine.load.loads import cpu_spec

REPOSITORY_DIR = Path(__file__).resolve().parents[4]
MB = 10**6
KV_MEMORY_BYTES = 64 * MB


def test_the_gauge_sees_what_is_held_and_what_was_held_for_a_moment() -> None:
    gc.collect()  # what earlier tests left is not freed meanwhile
    gauge = HostGauge()
    held = np.ones(60 * MB, dtype=np.uint8)
    gauge.watch()
    assert np.ones(100 * MB, dtype=np.uint8).any()
    assert 150 * MB < gauge.used_bytes() < 175 * MB
    gauge.watch()
    assert 55 * MB < gauge.used_bytes() < 70 * MB
    assert held.any()


def test_keys_and_values_are_held_where_somebody_wrote_to() -> None:
    before_bytes = anonymous_bytes()
    promised = lazy_zeros((50, 4 * MB), torch.uint8, torch.device("cpu"))
    assert anonymous_bytes() - before_bytes < 20 * MB
    promised[:, 0] = 1
    assert anonymous_bytes() - before_bytes < 20 * MB, "a small page for each byte, not a huge one"
    assert int(promised[:, :2].sum()) == 50, "all else is zero"


class Card:
    """A card of 24 GB as NVML and torch see it from one process of several."""

    NVMLError = pynvml.NVMLError

    def __init__(self, *, lists_us: bool) -> None:
        self.lists_us = lists_us
        self.others_bytes = 3_000 * MB
        self.context_bytes = 0
        self.reserved_bytes = 0

    @property
    def free_bytes(self) -> int:
        return 24_000 * MB - self.others_bytes - self.context_bytes - self.reserved_bytes

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own names
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return "GPU-1234"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        assert uuid == "GPU-1234"
        return 1

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(free=self.free_bytes)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        others = SimpleNamespace(pid=1, usedGpuMemory=self.others_bytes)
        own_bytes = self.context_bytes + self.reserved_bytes
        own = SimpleNamespace(pid=os.getpid(), usedGpuMemory=own_bytes)
        return [others, own] if self.lists_us else []


@each_case("lists_us", [True, False], ids=["on the host", "in a container"])
def test_a_context_on_a_card_is_counted_where_the_driver_does_not_list_the_process(
    lists_us: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Card(lists_us=lists_us)
    monkeypatch.setattr(memory_use, "pynvml", card)
    cuda = SimpleNamespace(
        get_device_properties=lambda device: SimpleNamespace(uuid="1234"),
        mem_get_info=lambda device: (card.free_bytes, 24_000 * MB),
        memory_reserved=lambda device: card.reserved_bytes,
    )
    host = HostGauge()
    card.context_bytes, card.reserved_bytes = 450 * MB, 5_000 * MB
    monkeypatch.setattr(torch, "cuda", cuda)
    assert gauge_for(torch.device("cuda:0"), host).process_bytes == 450 * MB


def load(gguf: Path, data_dir: Path, earlier: EarlierLoads | None) -> LoadReport:
    """Loads in an engine process of its own, as a neuron would."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "inference.engine", "--fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=REPOSITORY_DIR,
            env=os.environ | {"HELEXA_DATA_DIR": str(data_dir)},
        )
        try:
            channel = Channel(ours)
            spec = cpu_spec(
                gguf, kv_memory_bytes=KV_MEMORY_BYTES, max_prefill_s=300, earlier_loads=earlier
            )
            channel.send(msgspec.msgpack.encode(spec))
            while isinstance(message := decode_engine_message(channel.receive()), LoadProgressed):
                pass
        finally:
            process.kill()
            process.wait(30)
    assert isinstance(message, Loaded), message
    return message.report


@pytest.mark.slow
def test_the_second_load_is_estimated_within_five_percent_and_bound_by_real_speed(
    default_gguf: Path, data_dir: Path
) -> None:
    """KV, which both count whole, is subtracted: only the rest could be wrong."""
    first = load(default_gguf, data_dir, None)
    assert first.actual_bytes - first.kv_bytes > first.weight_bytes
    assert first.process_bytes > 50 * MB
    assert first.prefill_speed is not None
    earlier = EarlierLoads(
        device_kind="cpu",
        memory_correction_bytes=first.memory_correction_bytes,
        prefill_speed=PrefillSpeed(token_s=0.25),
    )
    second = load(default_gguf, data_dir, earlier)
    estimated_bytes = second.estimated_bytes - second.kv_bytes
    actual_bytes = second.actual_bytes - second.kv_bytes
    assert abs(estimated_bytes - actual_bytes) <= 0.05 * actual_bytes
    # Learning from an estimate that was right changes next to nothing.
    learnt = second.memory_correction_bytes - first.memory_correction_bytes
    assert abs(learnt) <= 0.05 * actual_bytes
    assert second.context_tokens == 1200, "300 s at the four tokens a second that requests had"
    assert "(4 tokens/s, average of earlier requests)" in second.context_reason
