"""Heartbeats whose replicas the control has ordered."""

from __future__ import annotations

import msgspec

from fleet.live.reports import load_orders
from inference.protocol.heartbeat import NeuronHeartbeat


def ordered(beat: NeuronHeartbeat) -> NeuronHeartbeat:
    replicas = [
        msgspec.structs.replace(
            state, order=load_orders().order(neuron=beat.name, model=state.model)
        )
        for state in beat.replicas
    ]
    return msgspec.structs.replace(beat, replicas=replicas)
