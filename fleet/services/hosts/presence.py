"""Checks that a named host reports now: jobs are created only for those that do."""

from __future__ import annotations

from fleet import selectors
from fleet.errors import NeuronAwayError
from fleet.live.snapshot import FleetSnapshot, NeuronView
from fleet.placement.returning import unavailable_hosts


def reporting_neuron(neuron_name: str, snapshot: FleetSnapshot) -> NeuronView:
    """Raises ``UnknownNeuronError``, ``NeuronAwayError``."""
    selectors.neuron_known(neuron_name)
    neuron = snapshot.neuron(neuron_name)
    if neuron is not None:
        return neuron
    host = next((one for one in unavailable_hosts(snapshot) if one.name == neuron_name), None)
    if host is None:
        raise NeuronAwayError(f"{neuron_name} does not report now: nothing can be done there")
    raise NeuronAwayError(
        f"{neuron_name} {host.how_long}: ask again when it is back", host.returns_in_s
    )
