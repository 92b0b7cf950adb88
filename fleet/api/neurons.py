"""Neurons, their devices and replicas, and the state that the operator wants of neurons."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.response import Response

from fleet import selectors, services
from fleet.api.access import Call, FleetListView, FleetView, body_of, seconds_in
from fleet.api.removal import removal_schema, removed
from fleet.api.shapes import DeviceShape, NeuronShape, ReplicaShape
from fleet.models import Device, Neuron, NeuronWish, Replica

DESIRED_STATES: dict[str, Callable[..., NeuronWish]] = {
    "drain": services.neuron_drain,
    "resume": services.neuron_resume,
    "admit": services.neuron_admit,
    "refuse": services.neuron_refuse,
}


class NeuronsView(FleetListView):
    """Every neuron that has reported, as it last did."""

    serializer_class = NeuronShape
    queryset = Neuron.objects.prefetch_related("devices__neuron", "replicas")
    filters = {"status": "status"}


class NeuronView(FleetView):
    serializer_class = NeuronShape
    permission_of = "fleet.neuron"
    queryset = Neuron.objects.none()

    def get(self, call: Call, name: str) -> Response:
        return Response(self.get_serializer(_neuron(name)).data)

    @removal_schema
    def delete(self, call: Call, name: str) -> Response:
        """Forgets a neuron that is away, with its load jobs."""
        remove = partial(services.neuron_remove, actor=self.actor, neuron_name=name)
        return removed(call, self.actor, remove)


class NeuronStateView(FleetView):
    """``drain``: no new requests or loads, running ones finish, or end after ``within_s`` seconds
    where it is given. ``resume`` ends that. ``admit`` and ``refuse`` set whether the neuron belongs
    to the fleet."""

    serializer_class = NeuronShape
    queryset = Neuron.objects.none()
    desired = ""

    def permission(self, method: str) -> str | None:
        return "fleet.change_neuron"

    @extend_schema(request=OpenApiTypes.OBJECT)
    def post(self, call: Call, name: str) -> Response:
        body = body_of(call, *(("within_s",) if self.desired == "drain" else ()))
        within_s = seconds_in(body, "within_s")
        values = {} if within_s is None else {"within_s": within_s}
        DESIRED_STATES[self.desired](actor=self.actor, neuron_name=name, **values)
        return Response(self.get_serializer(_neuron(name)).data)


class DevicesView(FleetListView):
    serializer_class = DeviceShape
    queryset = Device.objects.select_related("neuron")
    filters = {"neuron": "neuron__name", "kind": "kind"}


class ReplicasView(FleetListView):
    """Models as neurons have them loaded."""

    serializer_class = ReplicaShape
    queryset = Replica.objects.select_related("neuron")
    filters = {"neuron": "neuron__name", "model": "model_name", "status": "status"}


def _neuron(name: str) -> Neuron:
    """Raises ``UnknownNeuronError``."""
    found: Neuron = NeuronsView.queryset.filter(name=name).first() or selectors.neuron_known(name)
    return found
