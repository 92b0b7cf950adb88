"""Upstreams: their rows, and what works of each."""

from __future__ import annotations

from functools import partial
from typing import Any

from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.response import Response

from fleet import selectors, services
from fleet.api.access import Call, FleetListView, FleetView, body_of, flag_in, text_in
from fleet.api.removal import removal_schema, removed
from fleet.models import Upstream
from fleet.nouns.bodies import change_schema, changed_row, new_row, new_schema
from fleet.nouns.of_fleet import UPSTREAMS


class UpstreamShape(serializers.ModelSerializer[Upstream]):
    """Never its key."""

    has_key = serializers.BooleanField(read_only=True)
    models = serializers.JSONField(
        source="known_models", help_text="With the limits and prices that it named."
    )

    class Meta:
        model = Upstream
        fields = (
            "name",
            "url",
            "dialect",
            "has_key",
            "leaves_network",
            "concurrency",
            "connect_timeout_s",
            "first_token_timeout_s",
            "token_timeout_s",
            "proxy",
            "ca_file",
            "models",
            "discovered_at",
            "created_at",
            "updated_at",
        )


class ProbeShape(serializers.Serializer[Any]):
    what = serializers.CharField()
    works = serializers.BooleanField(allow_null=True, help_text="null: it was not tested.")
    detail = serializers.CharField()


class ProbedShape(serializers.Serializer[Any]):
    model = serializers.CharField(help_text="Which one was tested.")
    probes = ProbeShape(many=True)


class UpstreamsView(FleetListView):
    """Endpoints of others that answer requests."""

    serializer_class = UpstreamShape
    permission_of = "fleet.upstream"
    queryset = Upstream.objects.all()
    filters = {"dialect": "dialect", "leaves_network": "leaves_network"}

    @extend_schema(request=new_schema("UpstreamStart", UPSTREAMS), responses={201: UpstreamShape})
    def post(self, call: Call) -> Response:
        upstream = services.upstream_create(actor=self.actor, **new_row(call, UPSTREAMS))
        return Response(self.get_serializer(upstream).data, status=201)


class UpstreamView(FleetView):
    serializer_class = UpstreamShape
    permission_of = "fleet.upstream"
    queryset = Upstream.objects.none()

    def get(self, call: Call, name: str) -> Response:
        return Response(self.get_serializer(selectors.upstream_known(name)).data)

    @extend_schema(request=change_schema("UpstreamChange", UPSTREAMS))
    def patch(self, call: Call, name: str) -> Response:
        """A URL of another host needs the key again. Requests follow within a second."""
        upstream, changed = selectors.upstream_known(name), changed_row(call, UPSTREAMS)
        key = changed.pop("key", None)
        for field, value in changed.items():
            setattr(upstream, field, value)
        services.upstream_update(
            actor=self.actor, upstream=upstream, changed_fields=list(changed), key=key
        )
        return Response(self.get_serializer(upstream).data)

    @removal_schema
    def delete(self, call: Call, name: str) -> Response:
        upstream = selectors.upstream_known(name)
        remove = partial(services.upstream_delete, actor=self.actor, upstream=upstream)
        return removed(call, self.actor, remove)


class UpstreamTestView(FleetView):
    serializer_class = ProbedShape
    queryset = Upstream.objects.none()

    @extend_schema(
        request=inline_serializer(
            "UpstreamTest",
            {
                "model": serializers.CharField(required=False),
                "paid": serializers.BooleanField(required=False),
            },
        ),
        responses={200: ProbedShape},
    )
    def post(self, call: Call, name: str) -> Response:
        """Sends it a few small requests, within a minute, and records the models that it lists.
        ``model``: which one is asked; where it is not given, the first one that chats, by its name.
        ``paid``: also tries moderation, speech, transcription and image generation, which may cost
        money."""
        upstream = selectors.upstream_known(name)
        body = body_of(call, "model", "paid")
        model = text_in(body, "model") if "model" in body else ""
        probed = services.upstream_test(
            actor=self.actor, upstream=upstream, model=model, tries_paid=flag_in(body, "paid")
        )
        return Response(self.get_serializer(probed).data)
