"""Upstreams: their rows, and tests of them."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from fleet import selectors, services
from fleet.api.access import body_of, flag_in, text_in
from fleet.api.rows import RowShape, RowsView, assigned
from fleet.models import Upstream
from fleet.nouns import UPSTREAMS


class UpstreamShape(RowShape):
    """Without its key."""

    has_key = serializers.BooleanField(read_only=True)
    models = serializers.JSONField(
        source="known_models", help_text="With the limits and prices that it named."
    )

    class Meta:
        model = Upstream
        exclude = ("id", "sealed_secret", "known_models")


class ProbeShape(serializers.Serializer[Any]):
    what = serializers.CharField()
    works = serializers.BooleanField(allow_null=True, help_text="null: it was not tested.")
    detail = serializers.CharField()


class ProbedShape(serializers.Serializer[Any]):
    model = serializers.CharField(help_text="Which one was tested.")
    probes = ProbeShape(many=True)


class Upstreams(RowsView):
    """Endpoints of others that answer requests."""

    noun = UPSTREAMS
    serializer_class = UpstreamShape
    permission_of = "fleet.upstream"
    queryset = Upstream.objects.all()

    def find(self, name: str) -> Upstream:
        return selectors.upstream_known(name)

    def add(self, values: dict[str, Any]) -> Upstream:
        return services.upstream_create(actor=self.actor, **values)

    def change(self, upstream: Upstream, values: dict[str, Any]) -> None:
        """A URL of another host needs the key again. Requests follow within a second."""
        key = values.pop("key", None)
        fields = assigned(upstream, values)
        services.upstream_update(
            actor=self.actor, upstream=upstream, changed_fields=fields, key=key
        )

    def remove(self, upstream: Upstream) -> None:
        services.upstream_delete(actor=self.actor, upstream=upstream)

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
    @action(detail=True, methods=["post"], serializer_class=ProbedShape)
    def test(self, request: Request, name: str) -> Response:
        """Sends it a few small requests, within a minute, and records the models that it lists.
        ``model``: the model to test; by default the first one that chats, by its name. ``paid``:
        also tries moderation, speech, transcription and image generation, which may cost money."""
        upstream = selectors.upstream_known(name)
        body = body_of(request, "model", "paid")
        model = text_in(body, "model") if "model" in body else ""
        probed = services.upstream_test(
            actor=self.actor, upstream=upstream, model=model, tries_paid=flag_in(body, "paid")
        )
        return Response(ProbedShape(probed).data)
