"""Neurons, devices, replicas, invitations and the admission policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from fleet import selectors, services
from fleet.api.access import FleetListView, FleetView, body_of, seconds_in
from fleet.api.rows import RowShape, RowsView, change_schema, changed_row, new_row, removed
from fleet.catalogue.entry import is_outdated
from fleet.lifecycles import RecordedReplicaStatus
from fleet.live.desired_state import AdmissionPolicy
from fleet.live.reading import held_request_ids
from fleet.models import Device, FleetPolicy, Invitation, Neuron, NeuronWish, Replica
from fleet.nouns import INVITATIONS, NEURONS, POLICY
from metering.api.problems import ProblemError

UNDER_WAY = (RecordedReplicaStatus.LOADING, RecordedReplicaStatus.RECOVERING)


class DeviceShape(RowShape):
    neuron = serializers.CharField(source="neuron.name")
    id = serializers.SerializerMethodField()

    class Meta:
        model = Device
        fields = "__all__"

    def get_id(self, device: Device) -> str:
        return f"{device.kind}:{device.index}"


class HeldStageShape(serializers.Serializer[Any]):
    model = serializers.CharField()
    engine_neuron = serializers.CharField(help_text="The neuron that serves the model.")
    device = serializers.CharField()
    first_layer = serializers.IntegerField()
    last_layer = serializers.IntegerField(help_text="The one after its last layer.")
    status = serializers.CharField(help_text="loading, listening, ready or failed.")
    memory_bytes = serializers.IntegerField(allow_null=True)
    failure = serializers.CharField(help_text="Why it failed; else empty.")


class NeuronShape(RowShape):
    devices = DeviceShape(many=True)
    held_stages = HeldStageShape(
        many=True, help_text="Of models whose engines are on other neurons: no replicas."
    )
    replicas = serializers.SerializerMethodField()
    at_work = serializers.SerializerMethodField(
        help_text="The replicas with requests, or on their way."
    )
    requests = serializers.SerializerMethodField(help_text="The ids of the requests at work there.")

    class Meta:
        model = Neuron
        exclude = ("id",)

    def get_replicas(self, neuron: Neuron) -> list[str]:
        return [replica.model_name for replica in neuron.replicas.all()]

    def get_at_work(self, neuron: Neuron) -> list[dict[str, Any]]:
        return [
            {
                "model": replica.model_name,
                "status": replica.status,
                "num_requests": replica.in_flight + replica.queue_depth,
            }
            for replica in neuron.replicas.all()
            if replica.in_flight + replica.queue_depth or replica.status in UNDER_WAY
        ]

    def get_requests(self, neuron: Neuron) -> list[str]:
        has_some = any(one.in_flight + one.queue_depth for one in neuron.replicas.all())
        return held_request_ids(neuron.name) if has_some else []


class ReplicaShape(RowShape):
    model = serializers.CharField(source="model_name")
    neuron = serializers.CharField(source="neuron.name")
    is_outdated = serializers.SerializerMethodField(
        help_text="Loaded by another spec than the catalogue has now; null: it has none."
    )

    class Meta:
        model = Replica
        exclude = ("id", "model_name")

    def get_is_outdated(self, replica: Replica) -> bool | None:
        entry = selectors.catalogue_find(replica.model_name)
        return None if entry is None else is_outdated(replica.spec_digest, entry)


state_schema = extend_schema(request=OpenApiTypes.OBJECT, responses=NeuronShape)


class Neurons(RowsView):
    """Every neuron that has reported, by its last report."""

    noun = NEURONS
    can = ("remove",)
    serializer_class = NeuronShape
    permission_of = "fleet.neuron"
    queryset = Neuron.objects.prefetch_related("devices__neuron", "replicas")

    def permission(self, method: str) -> str | None:
        return "fleet.change_neuron" if method == "POST" else super().permission(method)

    def find(self, name: str) -> Neuron:
        found: Neuron = self.queryset.filter(name=name).first() or selectors.neuron_known(name)
        return found

    def destroy(self, request: Request, name: str) -> Response:  # type: ignore[override]
        """Forgets a neuron that is offline, with its load jobs."""
        remove = partial(services.neuron_remove, actor=self.actor, neuron_name=name)
        return removed(request, self.actor, remove)

    @state_schema
    @action(detail=True, methods=["post"])
    def drain(self, request: Request, name: str) -> Response:
        """No new requests or loads. Running ones finish, or end after ``within_s`` seconds where it
        is given."""
        within_s = seconds_in(body_of(request, "within_s"), "within_s")
        values = {} if within_s is None else {"within_s": within_s}
        return self._set(services.neuron_drain, name, **values)

    @state_schema
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, name: str) -> Response:
        """Ends a drain."""
        body_of(request)
        return self._set(services.neuron_resume, name)

    @state_schema
    @action(detail=True, methods=["post"])
    def admit(self, request: Request, name: str) -> Response:
        """The neuron belongs to the fleet from now on."""
        body_of(request)
        return self._set(services.neuron_admit, name)

    @state_schema
    @action(detail=True, methods=["post"])
    def refuse(self, request: Request, name: str) -> Response:
        """The neuron does not belong to the fleet: it gets no loads and requests."""
        body_of(request)
        return self._set(services.neuron_refuse, name)

    def _set(self, service: Callable[..., NeuronWish], name: str, **values: int) -> Response:
        service(actor=self.actor, neuron_name=name, **values)
        return Response(self.shown(self.find(name)))


class DevicesView(FleetListView):
    serializer_class = DeviceShape
    queryset = Device.objects.select_related("neuron")
    filters = {"neuron": "neuron__name", "kind": "kind"}


class ReplicasView(FleetListView):
    """The models that neurons have loaded."""

    serializer_class = ReplicaShape
    queryset = Replica.objects.select_related("neuron")
    filters = {"neuron": "neuron__name", "model": "model_name", "status": "status"}


SHOWN_ONCE = {"Cache-Control": "no-store"}


class InvitationShape(RowShape):
    neuron = serializers.CharField(source="neuron_name")

    class Meta:
        model = Invitation
        exclude = ("id", "neuron_name", "secret_sha256")


class NewInvitationShape(InvitationShape):
    """``join`` and ``voids_earlier`` are shown in this answer alone."""

    join = serializers.CharField(read_only=True, help_text="For `neuron --join` on that host.")

    voids_earlier = serializers.BooleanField(
        read_only=True, help_text="An earlier line of that neuron is void from now on."
    )


class PolicyShape(RowShape):
    class Meta:
        model = FleetPolicy
        exclude = ("id", "share_certificate")


class Invitations(RowsView):
    """Hosts that were invited. A second invitation of a name voids the line of the first."""

    noun = INVITATIONS
    can = ("add", "remove")
    serializer_class = InvitationShape
    permission_of = "fleet.invitation"
    queryset = Invitation.objects.all()
    new_shape = NewInvitationShape

    def find(self, name: str) -> Invitation:
        found = Invitation.objects.filter(neuron_name=name).first()
        if found is None:
            raise ProblemError(404, "invitation_not_found", f"{name!r} has no invitation.")
        return found

    def create(self, request: Request) -> Response:
        body = new_row(request, INVITATIONS)
        voids_earlier = selectors.is_invited(body["neuron"])
        line = services.neuron_invite(
            actor=self.actor,
            neuron_name=body["neuron"],
            address=body.get("address") or None,
            again=body.get("again", False),
        )
        shown = self.shown(self.find(body["neuron"]))
        answer = {**shown, "join": line, "voids_earlier": voids_earlier}
        return Response(answer, status=201, headers=SHOWN_ONCE)

    def remove(self, invitation: Invitation) -> None:
        """Shuts the host out: its Redis user goes, and its connections with it."""
        services.neuron_revoke(actor=self.actor, neuron_name=invitation.neuron_name)


class PolicyView(FleetView):
    """The fleet's policy. The address of Redis for invited hosts is that of ``serve --share``."""

    serializer_class = PolicyShape
    permission_of = "fleet.fleetpolicy"
    queryset = FleetPolicy.objects.none()

    def get(self, request: Request) -> Response:
        return Response(self._shown())

    @extend_schema(request=change_schema(POLICY))
    def patch(self, request: Request) -> Response:
        policy = AdmissionPolicy(changed_row(request, POLICY)["admission"])
        services.admission_policy_set(actor=self.actor, policy=policy)
        return Response(self._shown())

    def _shown(self) -> Any:
        policy = FleetPolicy.objects.filter(pk=1).first() or FleetPolicy()
        return self.get_serializer(policy).data
