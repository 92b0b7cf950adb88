"""The secret of a load's links stays in the load."""

from __future__ import annotations

import msgspec

from inference.protocol.load import (
    LinkIdentity,
    LoadSpec,
    StageOf,
    StageSpec,
    spec_digest,
    without_secrets,
)

SECRET = "-----BEGIN PRIVATE KEY----- a secret"
SPEC = LoadSpec(
    job_id="1",
    model="m",
    source="path:/models/m",
    stages=[
        StageSpec(device="cpu", layers=(0, 1)),
        StageSpec(device="cpu", layers=(1, 2), neuron="b", address="10.0.0.5:7400"),
    ],
    stage_of=StageOf(index=1, engine_neuron="a", engine_certificate="the engine's"),
    link_identity=LinkIdentity(certificate="a certificate", private_key=SECRET),
)


def test_the_key_crosses_with_the_load_and_is_shown_nowhere() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(SPEC), type=LoadSpec) == SPEC
    assert SECRET not in repr(SPEC)
    assert SECRET not in str(without_secrets(SPEC))
    assert SECRET.encode() not in msgspec.json.encode(without_secrets(SPEC))


def test_where_stages_are_does_not_count_in_the_digest() -> None:
    elsewhere = LoadSpec(job_id="1", model="m", source="path:/models/m")
    assert spec_digest(SPEC) == spec_digest(elsewhere) == spec_digest(without_secrets(SPEC))
