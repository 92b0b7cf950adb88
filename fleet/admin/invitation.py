"""Invitations: a name becomes a line to paste on a host; deleting one shuts the host out."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.urls import reverse_lazy
from django.utils.text import format_lazy

from fleet import services
from fleet.admin.loading import actor_of
from fleet.admin.unfold_types import AnyForm, UnfoldAdmin, WrittenAdmin, column, text_field
from fleet.live.desired_state import AdmissionPolicy
from fleet.models import FleetPolicy, Invitation
from fleet.services.hosts.invitations import invitation_check
from helexa_site.program import installation, neuron_program
from helexa_site.web.pages import SHOWN_ONCE, render_page
from inference.protocol.keys import NEURON_NAME


class InvitationForm(AnyForm):
    neuron_name = text_field(
        "Letters, digits, '.', '_' and '-': how the host is called here.",
        max_length=63,
        required=True,
    )
    address = text_field(
        format_lazy(
            "HOST:PORT at which that host reaches Redis; empty: as serve --share or "
            '<a href="{sharing}">Sharing</a> has it.',
            sharing=reverse_lazy("sharing"),
        ),
        max_length=255,
    )

    class Meta:
        model = Invitation
        fields = ("neuron_name",)

    def clean_neuron_name(self) -> str:
        name: str = self.cleaned_data["neuron_name"]
        if not NEURON_NAME.fullmatch(name):
            raise ValidationError("letters, digits, '.', '_' and '-', and a letter or digit first")
        return name

    def clean_address(self) -> str | None:
        address = self.cleaned_data["address"] or None
        if problem := invitation_check(address=address):
            raise ValidationError(problem)
        return address


@admin.register(Invitation)
class InvitationAdmin(WrittenAdmin):
    form = InvitationForm
    list_display = ("neuron_name", "invited_at", "invited_by")
    search_fields = ("neuron_name",)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("neuron_name", "address") if obj is None else self.list_display

    def save_model(self, request: HttpRequest, obj: Any, form: AnyForm, change: bool) -> None:
        obj.shown_once = services.neuron_invite(actor=actor_of(request), **form.cleaned_data)
        obj.pk = Invitation.objects.get(neuron_name=obj.neuron_name).pk

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        """The page with the line, which is stored nowhere: not in the session, a cache or the
        history."""
        line = f"{neuron_program()} neuron --join {obj.shown_once}"
        shown = {"invitation": obj, "where": installation().value, "shown_once": line}
        return render_page(
            request,
            "fleet/invitation_created.html",
            title=f"An invitation for {obj.neuron_name}",
            context={"opts": self.opts, **shown},
            headers=SHOWN_ONCE,
        )

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        services.neuron_revoke(actor=actor_of(request), neuron_name=obj.neuron_name)


def _share(policy: FleetPolicy) -> str:
    return f"{policy.share_address} by TLS" if policy.share_is_tls else policy.share_address


@admin.register(FleetPolicy)
class FleetPolicyAdmin(UnfoldAdmin):
    """One row. ``serve --share`` sets the address at which invited hosts find Redis."""

    list_display = ("admission", "share")
    fields = ("admission",)

    share = column("Address for invited hosts", _share)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return super().has_add_permission(request) and not FleetPolicy.objects.exists()

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Any, form: AnyForm, change: bool) -> None:
        policy = AdmissionPolicy(form.cleaned_data["admission"])
        services.admission_policy_set(actor=actor_of(request), policy=policy)
        obj.pk = 1
