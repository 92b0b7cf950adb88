"""Neurons, their devices and replicas, and the state that the operator wants of neurons."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.response import Response

from fleet import selectors, services
from fleet.api.access import Call, FleetListView, body_of, seconds_in
from fleet.api.removal import removed
from fleet.api.rows import RowsView
from fleet.api.shapes import DeviceShape, NeuronShape, ReplicaShape
from fleet.models import Device, Neuron, NeuronWish, Replica
from fleet.nouns.of_fleet import NEURONS

STATE_BODY = {"request": OpenApiTypes.OBJECT, "responses": NeuronShape}


class Neurons(RowsView):
    """Every neuron that has reported, as it last did."""

    noun = NEURONS
    can = ("remove",)
    serializer_class = NeuronShape
    permission_of = "fleet.neuron"
    queryset = Neuron.objects.prefetch_related("devices__neuron", "replicas")
    filters = {"status": "status"}

    def permission(self, method: str) -> str | None:
        return "fleet.change_neuron" if method == "POST" else super().permission(method)

    def find(self, name: str) -> Neuron:  # type: ignore[override]
        """Raises ``UnknownNeuronError``."""
        found: Neuron = self.queryset.filter(name=name).first() or selectors.neuron_known(name)
        return found

    def destroy(self, call: Call, name: str) -> Response:  # type: ignore[override]
        """Forgets a neuron that is away, with its load jobs."""
        remove = partial(services.neuron_remove, actor=self.actor, neuron_name=name)
        return removed(call, self.actor, remove)

    @extend_schema(**STATE_BODY)
    @action(detail=True, methods=["post"])
    def drain(self, call: Call, name: str) -> Response:
        """No new requests or loads. Running ones finish, or end after ``within_s`` seconds where it
        is given."""
        within_s = seconds_in(body_of(call, "within_s"), "within_s")
        values = {} if within_s is None else {"within_s": within_s}
        return self._set(services.neuron_drain, name, **values)

    @extend_schema(**STATE_BODY)
    @action(detail=True, methods=["post"])
    def resume(self, call: Call, name: str) -> Response:
        """Ends a drain."""
        body_of(call)
        return self._set(services.neuron_resume, name)

    @extend_schema(**STATE_BODY)
    @action(detail=True, methods=["post"])
    def admit(self, call: Call, name: str) -> Response:
        """The neuron belongs to the fleet from now on."""
        body_of(call)
        return self._set(services.neuron_admit, name)

    @extend_schema(**STATE_BODY)
    @action(detail=True, methods=["post"])
    def refuse(self, call: Call, name: str) -> Response:
        """The neuron does not belong to the fleet: it gets no loads and requests."""
        body_of(call)
        return self._set(services.neuron_refuse, name)

    def _set(self, service: Callable[..., NeuronWish], name: str, **values: int) -> Response:
        service(actor=self.actor, neuron_name=name, **values)
        return Response(self.shown(self.find(name)))


class DevicesView(FleetListView):
    serializer_class = DeviceShape
    queryset = Device.objects.select_related("neuron")
    filters = {"neuron": "neuron__name", "kind": "kind"}


class ReplicasView(FleetListView):
    """Models as neurons have them loaded."""

    serializer_class = ReplicaShape
    queryset = Replica.objects.select_related("neuron")
    filters = {"neuron": "neuron__name", "model": "model_name", "status": "status"}
