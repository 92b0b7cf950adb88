"""Either end of a control link may be another host's: what it sends that no stage, or no engine,
sends ends the load or the process, and nothing more."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from inference.channel import HEADER, MAX_FRAME_BYTES, Channel
from inference.engine.children import encode
from inference.engine.errors import DeviceFault, EngineError
from inference.engine.stages.messages import (
    AdapterAdded,
    Alive,
    BuildStage,
    Done,
    FromStage,
    MeetStage,
    RunStep,
    StageOpened,
    ToStage,
)
from inference.protocol.engine import LoadFailedMessage, StageReleased
from inference.protocol.load import LoadSpec
from inference.stage_links.addresses import address_of
from inference.stage_links.connection import SecureConnection
from inference.stage_links.dialling import dial
from inference.stage_links.identities import new_identity
from inference.stage_links.listener import LinkListener
from tests.inference.engine.stages.loads import load, spec_of
from tests.inference.engine.stages.remote_stages import (
    HERE,
    RemoteStages,
    last_messages,
    remote_stages,
)

WAIT_S = 60.0
GARBAGE = HEADER.pack(7) + b"garbage"
TOO_LARGE = HEADER.pack(MAX_FRAME_BYTES + 1)
OPENED = StageOpened(device="cpu", required_bytes=1, weight_bytes=1, num_positions=256)


def framed(*messages: FromStage | ToStage) -> bytes:
    frames = [encode(message) for message in messages]
    return b"".join(HEADER.pack(len(frame)) + frame for frame in frames)


LIES = {
    "garbage": GARBAGE,
    "a frame without an end": TOO_LARGE,
    "another type": HEADER.pack(1) + b"\xc0",
    "an engine's frame": framed(MeetStage(files_digest="")),
    "an answer to nothing": framed(Done()),
    "an adapter that nobody adds": framed(AdapterAdded(number=1)),
    "no device": framed(Alive(), msgspec.structs.replace(OPENED, device="everything")),
    "its end": b"",
}


@pytest.fixture
def data_dir(tmp_path: Path, native_cache_dir: Path) -> Path:
    (tmp_path / "data" / "cache").mkdir(parents=True)
    (tmp_path / "data" / "cache" / "native").symlink_to(native_cache_dir)
    return tmp_path / "data"


def hostile_stage(spec: LoadSpec, answer: bytes) -> tuple[LoadSpec, threading.Thread]:
    """The engine's spec, whose second stage sends ``answer`` on every link and ends."""
    engine, stage = new_identity(), new_identity()
    purposes = ("control", "rows", "rows-back")
    listener = LinkListener(("127.0.0.1", 0), stage, dict.fromkeys(purposes, engine.certificate))

    def run() -> None:
        control = listener.accept("control", WAIT_S)
        listener.accept_all(WAIT_S)
        control.sendall(answer)
        Channel(control).receive()  # until the engine has taken it
        control.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    own = msgspec.structs.replace(
        spec.stages[1],
        neuron="b",
        address=f"127.0.0.1:{listener.port}",
        certificate=stage.certificate,
    )
    stages = [spec.stages[0], own]
    return msgspec.structs.replace(spec, stages=stages, link_identity=engine), thread


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_what_no_stage_sends_fails_the_load(
    tiny_model_dir: Path, data_dir: Path, lie: bytes
) -> None:
    spec, thread = hostile_stage(spec_of(tiny_model_dir, 1, 3), lie)
    with pytest.raises((EngineError, RuntimeError)) as raised:
        load(spec, data_dir)
    assert isinstance(raised.value, DeviceFault) or "device" in str(raised.value)
    thread.join(WAIT_S)
    assert not thread.is_alive()


def dial_as_engine(there: RemoteStages) -> SecureConnection:
    stage = there.spec.stages[1]
    return dial(
        address_of(stage.address), there.engine, stage.certificate, "control", timeout_s=WAIT_S
    )


NO_ENGINES = {
    "garbage": GARBAGE,
    "a frame without an end": TOO_LARGE,
    "its end": b"",
    "a step first": framed(
        RunStep(number=1, step={"arrays": {}, "block_tokens": 16, "num_decodes": 0})  # type: ignore[arg-type]
    ),
    "building first": framed(BuildStage(context_tokens=2**62, has_images=False)),
    "a stage's frame": framed(Done()),
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", NO_ENGINES.values(), ids=NO_ENGINES)
def test_what_no_engine_sends_ends_the_stage(
    tiny_model_dir: Path, data_dir: Path, lie: bytes
) -> None:
    with remote_stages(tiny_model_dir, data_dir, [HERE, "b"], 1, 3) as there:
        control = dial_as_engine(there)
        control.sendall(lie)
        if not lie:
            control.close()
        last = last_messages(there.stages[0])[-1]
        assert isinstance(last, LoadFailedMessage | StageReleased), last
        there.stages[0].process.wait(WAIT_S)
        control.close()
