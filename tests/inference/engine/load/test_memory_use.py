"""What a load takes is what its process then holds; a second load knows what the first one took,
and how fast requests were."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from inference.engine.load.memory_use import HostGauge, anonymous_bytes
from inference.engine.serving.channel import Channel
from inference.models.paged_kv import untouched_zeros
from inference.protocol.engine import Loaded, LoadProgressed, decode_engine_message
from inference.protocol.load import EarlierLoads, LoadReport, LoadSpec
from inference.protocol.prefill_speed import PrefillSpeed

REPOSITORY_DIR = Path(__file__).resolve().parents[4]
MB = 10**6
KV_MEMORY_BYTES = 64 * MB


def test_the_gauge_sees_what_is_held_and_what_was_held_for_a_moment() -> None:
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
    promised = untouched_zeros((50, 4 * MB), torch.uint8, torch.device("cpu"))
    assert anonymous_bytes() - before_bytes < 20 * MB
    promised[:, 0] = 1
    assert anonymous_bytes() - before_bytes < 20 * MB, "a small page for each byte, not a huge one"
    assert int(promised[:, :2].sum()) == 50, "all else is zero"


def load(gguf: Path, data_dir: Path, earlier: EarlierLoads | None) -> LoadReport:
    """In an engine process of its own, as a neuron would."""
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
            spec = LoadSpec(
                job_id="1",
                model="default",
                source=f"path:{gguf}",
                devices=["cpu"],
                kv_memory_bytes=KV_MEMORY_BYTES,
                max_prefill_s=300,
                earlier_loads=earlier,
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
    """KV, which both count whole, is taken off: what is left is what could be wrong."""
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
