"""Stages of other neurons answer what the undivided model answers, wherever they are in the order:
to the bit where its dtype is float32. What ends a load or a stage: the other end of a link may be
another host's."""

from __future__ import annotations

import shutil
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from inference.channel import HEADER, MAX_FRAME_BYTES, Channel
from inference.engine.divided import remote_stage, stage_messages
from inference.engine.divided.stage_specs import are_narrow, files_digest
from inference.engine.divided.step_frames import Step
from inference.engine.errors import DeviceFault, EngineError, EngineExit
from inference.link_identities import new_identity
from inference.protocol import engine as protocol
from inference.protocol.load_errors import PartFailedError, StageUnreachableError
from inference.stage_links import LinkListener, SecureConnection, address_of, dial
from tests.cases import each_case
from tests.inference.engine.divided import conftest as stages

ORDERS = {
    "there and back": (["", "b"], (1, 3)),
    "from here to another": (["", "", "b"], (1, 2, 3)),
    "back from another": (["", "b", ""], (1, 2, 3)),
    "from another to a third": (["", "b", "c"], (1, 2, 3)),
    "beside each other": (["", "b", "b"], (1, 2, 3)),
}


@pytest.mark.parametrize(("neurons", "ends"), ORDERS.values(), ids=ORDERS)
def test_in_any_order(
    tiny_model_dir: Path, data_dir: Path, neurons: list[str], ends: tuple[int, ...]
) -> None:
    """Also what a stage reports to its own neuron. In float32 rows to other hosts are not rounded:
    a CPU computes alike without it."""
    expected = stages.answers(stages.load(stages.spec_of(tiny_model_dir), data_dir))
    there = stages.started(
        stages.ordered(tiny_model_dir, neurons, *ends, dtype="float32"), data_dir
    )
    loaded = stages.load(there.spec, data_dir)
    report, stage = loaded.report, there.stages[0]
    assert [stage.neuron for stage in report.stages] == neurons
    assert stages.answers(loaded) == expected
    ready = stage.next(protocol.StageReady)
    assert report.stages[neurons.index("b")] == ready.report and ready.report.neuron == "b"
    (memory,) = report.stage_memory
    assert memory.device == report.device == ready.memory.device == "cpu"
    assert memory.actual_bytes == report.actual_bytes
    # Stages are threads here, so what a load adds to the process may have been freed by another.
    assert ready.report.kv_bytes > 0 and ready.memory.process_bytes > 0
    assert report.asleep is None, "it does not sleep"
    stage.next(protocol.StageAlive)
    stages.close_all()
    assert isinstance(stage.last(), protocol.StageReleased) and stage.code == EngineExit.OK


@each_case("dtype", ["auto", "float32"])
def test_rows_are_rounded_where_they_leave_a_host(dtype: str) -> None:
    spec = stages.ordered(Path("/m"), ["", "", "b", "b", "c"], 1, 2, 3, 4, 5, dtype=dtype).spec
    leaves = [False, True, False, True, True]  # the last one's rows go back
    assert [are_narrow(spec, index) for index in range(5)] == [
        one and dtype == "auto" for one in leaves
    ]


@pytest.fixture
def there(tiny_model_dir: Path, data_dir: Path) -> stages.RemoteStages:
    """One stage here, and one that waits on another neuron."""
    return stages.started(stages.ordered(tiny_model_dir, ["", "b"], 1, 3), data_dir)


def test_files_that_are_not_the_engines_are_refused(
    there: stages.RemoteStages, tiny_model_dir: Path, data_dir: Path, tmp_path: Path
) -> None:
    """A stage that computed with others would answer, and wrongly."""
    shutil.copytree(tiny_model_dir, tmp_path, dirs_exist_ok=True)
    weights = bytearray((tmp_path / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(weights)
    with pytest.raises(PartFailedError, match="other files") as raised:
        stages.load(msgspec.structs.replace(there.spec, source=f"path:{tmp_path}"), data_dir)
    assert there.stages[0].last().failure == raised.value.failure
    assert raised.value.failure.code == "bad_file"
    assert there.stages[0].code == EngineExit.FAILED


def test_a_stage_that_is_another_is_refused(there: stages.RemoteStages, data_dir: Path) -> None:
    """Its certificate is not the one that the load names; it waits for its own engine."""
    other = new_identity()
    for spec in (
        stages.with_stage(there.spec, 1, certificate=other.certificate),
        msgspec.structs.replace(there.spec, link_identity=other),
    ):
        with pytest.raises(StageUnreachableError):
            stages.load(spec, data_dir)
    stages.load(there.spec, data_dir)
    there.stages[0].next(protocol.StageReady)


def test_ports_are_those_that_the_operator_named(
    tiny_model_dir: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one where the first is taken; a failure where all are, or none is named."""
    monkeypatch.setattr(remote_stage, "ENGINE_TIMEOUT_S", 0.5)
    order = stages.ordered(tiny_model_dir, ["", "b"], 1, 3).orders[1]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for listen, problem in (("", "HELEXA_STAGE_LISTEN"), (f"127.0.0.1:{port}", "is free")):
            monkeypatch.setenv("HELEXA_STAGE_LISTEN", listen)
            failed = stages.HeldStage(order, data_dir).last()
            assert (
                isinstance(failed, protocol.LoadFailedMessage) and problem in failed.failure.message
            )
        monkeypatch.setenv("HELEXA_STAGE_LISTEN", f"127.0.0.1:{port}-{port + 20}")
        stage = stages.HeldStage(order, data_dir)
        host, found = address_of(stage.next(protocol.StageListening).address)
        assert port < found <= port + 20
        released = stage.last()
        assert isinstance(released, protocol.StageReleased) and "no engine came" in released.reason
        assert stage.code == EngineExit.OK
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((host, found))


def dial_as_engine(there: stages.RemoteStages) -> SecureConnection:
    stage, timeouts = there.spec.stages[1], {"timeout_s": 60.0, "stall_timeout_s": 60.0}
    address = address_of(stage.address)
    return dial(address, there.engine, stage.certificate, "control", **timeouts)


def test_neighbours_that_never_come_fail_the_stage(
    there: stages.RemoteStages, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that has the stage built, and made no links for its rows before: it holds the
    control link, so nothing else would end the stage."""
    monkeypatch.setattr(remote_stage, "LINKS_TIMEOUT_S", 0.1)
    monkeypatch.setattr(remote_stage, "NEIGHBOUR_TIMEOUT_S", 5.0)
    files: Any = SimpleNamespace(
        weight_paths=[tiny_model_dir / "model.safetensors"], projector=None
    )
    control = dial_as_engine(there)
    meeting = stage_messages.MeetStage(files_digest=files_digest(files))
    control.sendall(framed(meeting, stage_messages.BuildStage(context_tokens=64, has_images=False)))
    failed = there.stages[0].last()
    control.close()
    assert isinstance(failed, protocol.LoadFailedMessage), failed
    assert failed.failure.code == "stage_unreachable"
    assert "links for rows of stage 2 of 2" in failed.failure.message
    assert there.stages[0].code == EngineExit.FAILED


def framed(*messages: stage_messages.FromStage | stage_messages.ToStage) -> bytes:
    frames = [protocol.encode_engine_frame(message) for message in messages]
    return b"".join(HEADER.pack(len(frame)) + frame for frame in frames)


NO_ENGINES = {
    "garbage": HEADER.pack(7) + b"garbage",
    "a frame without an end": HEADER.pack(MAX_FRAME_BYTES + 1),
    "its end": b"",
    "a step first": framed(
        stage_messages.RunStep(number=1, step=Step(arrays={}, block_tokens=16, num_decodes=0))
    ),
    "building first": framed(stage_messages.BuildStage(context_tokens=2**62, has_images=False)),
    "a stage's frame": framed(stage_messages.Done()),
}


@pytest.mark.parametrize("lie", NO_ENGINES.values(), ids=NO_ENGINES)
def test_what_no_engine_sends_ends_the_stage(there: stages.RemoteStages, lie: bytes) -> None:
    control = dial_as_engine(there)
    control.sendall(lie)
    if not lie:
        control.close()
    assert isinstance(there.stages[0].last(), protocol.LoadFailedMessage | protocol.StageReleased)
    control.close()


NO_DEVICE = stage_messages.StageOpened(
    device="everything", required_bytes=1, weight_bytes=1, num_positions=256
)
LIES = {
    **{name: NO_ENGINES[name] for name in ("garbage", "a frame without an end", "its end")},
    "another type": HEADER.pack(1) + b"\xc0",
    "an engine's frame": framed(stage_messages.MeetStage(files_digest="")),
    "an answer to nothing": framed(stage_messages.Done()),
    "an adapter that nobody adds": framed(stage_messages.AdapterAdded(number=1)),
    "no device": framed(stage_messages.Alive(), NO_DEVICE),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_what_no_stage_sends_fails_the_load(
    tiny_model_dir: Path, data_dir: Path, lie: bytes
) -> None:
    """A host whose stage sends the lie on its control link and ends."""
    there = stages.ordered(tiny_model_dir, ["", "b"], 1, 3)
    stage = there.orders[1].link_identity
    assert stage is not None
    purposes = dict.fromkeys(("control", "rows", "rows-back"), there.engine.certificate)
    listener = LinkListener(("127.0.0.1", 0), stage, purposes)

    def answer() -> None:
        control = listener.accept("control", stages.WAIT_S)
        listener.accept_all(stages.WAIT_S)
        control.sendall(lie)
        Channel(control).receive()  # until the engine has taken it
        control.close()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    spec = stages.with_stage(there.spec, 1, address=f"127.0.0.1:{listener.port}")
    with pytest.raises((EngineError, RuntimeError)) as raised:
        stages.load(spec, data_dir)
    assert isinstance(raised.value, DeviceFault) or "device" in str(raised.value)
    thread.join(stages.WAIT_S)
    assert not thread.is_alive()
