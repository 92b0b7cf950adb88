"""Invitations of hosts, and the admission policy for new neurons."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.response import Response

from fleet import selectors, services
from fleet.api.access import Call, FleetView
from fleet.api.rows import RowsView, change_schema, changed_row, new_row
from fleet.live.desired_state import AdmissionPolicy
from fleet.models import FleetPolicy, Invitation
from fleet.nouns.of_fleet import INVITATIONS, POLICY
from metering.api.problems import ProblemError

SHOWN_ONCE = {"Cache-Control": "no-store"}


class InvitationShape(serializers.ModelSerializer[Invitation]):
    neuron = serializers.CharField(source="neuron_name")

    class Meta:
        model = Invitation
        fields = ("neuron", "invited_by", "invited_at", "cut_off_at", "cut_off_reason")


class NewInvitationShape(InvitationShape):
    """``join`` and ``voids_earlier`` are shown in this answer alone."""

    join = serializers.CharField(read_only=True, help_text="For `neuron --join` on that host.")

    voids_earlier = serializers.BooleanField(
        read_only=True, help_text="An earlier line of that neuron is void from now on."
    )

    class Meta(InvitationShape.Meta):
        fields = (*InvitationShape.Meta.fields, "join", "voids_earlier")  # type: ignore[assignment]


class PolicyShape(serializers.ModelSerializer[FleetPolicy]):
    class Meta:
        model = FleetPolicy
        fields = ("admission", "share_address", "share_is_tls")


class Invitations(RowsView):
    """Hosts that were invited. A second invitation of a name voids the line of the first."""

    noun = INVITATIONS
    can = ("add", "remove")
    serializer_class = InvitationShape
    permission_of = "fleet.invitation"
    queryset = Invitation.objects.all()
    filters = {"neuron": "neuron_name", "invited_by": "invited_by"}
    new_shape = NewInvitationShape

    def find(self, name: str) -> Invitation:  # type: ignore[override]
        """Raises ``ProblemError``."""
        found = Invitation.objects.filter(neuron_name=name).first()
        if found is None:
            raise ProblemError(404, "invitation_not_found", f"{name!r} has no invitation.")
        return found

    def create(self, call: Call) -> Response:
        body = new_row(call, INVITATIONS)
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
    """The fleet's policy. Where invited hosts reach Redis is what ``serve --share`` was given."""

    serializer_class = PolicyShape
    permission_of = "fleet.fleetpolicy"
    queryset = FleetPolicy.objects.none()

    def get(self, call: Call) -> Response:
        return Response(self._shown())

    @extend_schema(request=change_schema(POLICY))
    def patch(self, call: Call) -> Response:
        policy = AdmissionPolicy(changed_row(call, POLICY)["admission"])
        services.admission_policy_set(actor=self.actor, policy=policy)
        return Response(self._shown())

    def _shown(self) -> Any:
        policy = FleetPolicy.objects.filter(pk=1).first() or FleetPolicy()
        return self.get_serializer(policy).data
