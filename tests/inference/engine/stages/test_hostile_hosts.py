"""The other end of a control link may be another host's: what it sends that no stage sends ends the
load, and nothing more."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from inference.channel import HEADER, Channel
from inference.engine.errors import DeviceFault, EngineError
from inference.engine.stages.messages import AdapterAdded, Alive, Done, MeetStage, StageOpened
from inference.protocol.load import LoadSpec
from inference.stage_links.identities import new_identity
from inference.stage_links.links import LinkListener
from tests.inference.engine.stages.stages import load, spec_of
from tests.inference.engine.stages.test_remote_stages import NO_ENGINES, framed

WAIT_S = 60.0
OPENED = StageOpened(device="cpu", required_bytes=1, weight_bytes=1, num_positions=256)
LIES = {
    **{name: NO_ENGINES[name] for name in ("garbage", "a frame without an end", "its end")},
    "another type": HEADER.pack(1) + b"\xc0",
    "an engine's frame": framed(MeetStage(files_digest="")),
    "an answer to nothing": framed(Done()),
    "an adapter that nobody adds": framed(AdapterAdded(number=1)),
    "no device": framed(Alive(), msgspec.structs.replace(OPENED, device="everything")),
}


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
