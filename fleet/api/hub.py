"""Hugging Face or a named source: its search, and a repository's models and where they fit. A
choice's ``settings``, with a name, are a body for ``POST /api/catalogue``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from fleet import selectors
from fleet.api.access import ObjectView
from fleet.api.jobs import FileShape
from fleet.hub import Choice, HubRepository, choices_of
from fleet.live import reading as live
from metering.api.problems import invalid

if TYPE_CHECKING:
    from fleet.hub_client import HubClient

MAX_WORDS = 200
SOURCE = {"source": "huggingface, or a named source. Without it: the default one."}


class MatchShape(serializers.Serializer[Any]):
    name = serializers.CharField()
    num_downloads = serializers.IntegerField()
    num_likes = serializers.IntegerField()
    is_gated = serializers.BooleanField()


class FitShape(serializers.Serializer[Any]):
    neuron = serializers.CharField()
    fits = serializers.BooleanField(help_text="Now, or once others have left.")
    words = serializers.CharField()


class ChoiceShape(serializers.Serializer[Any]):
    label = serializers.CharField()  # type: ignore[assignment]
    model_name = serializers.CharField(help_text="What it could be named in the catalogue.")
    files = FileShape(many=True)
    num_bytes = serializers.IntegerField()
    projector = serializers.CharField(
        allow_null=True, help_text="Of its files, the mmproj file by which it reads images."
    )
    problem = serializers.CharField(allow_null=True, help_text="Why this build does not run it.")
    access_problem = serializers.CharField(
        allow_null=True, help_text="Why the hub does not show it, as where a token is needed."
    )
    fits = FitShape(many=True)
    settings = serializers.DictField(help_text="Of the catalogue's model.")


class RepositoryShape(serializers.Serializer[Any]):
    name = serializers.CharField()
    commit = serializers.CharField()
    is_gated = serializers.BooleanField()
    choices = ChoiceShape(many=True)


class HubSearchView(ObjectView):
    """The most downloaded first."""

    serializer_class = MatchShape
    filters = {"search": "", "source": ""}
    filter_help = SOURCE

    @extend_schema(
        parameters=[OpenApiParameter("search", str, required=True)],
        responses={200: MatchShape(many=True)},
    )
    def get(self, request: Request) -> Response:
        words = request.query_params.get("search", "").strip()
        if not 0 < len(words) <= MAX_WORDS:
            raise invalid("search", f"'search' is to be 1 to {MAX_WORDS} characters of a name.")
        return Response(MatchShape(_client(request).search(words), many=True).data)


class HubRepositoryView(ObjectView):
    """Each of its models: the safetensors, and every GGUF."""

    serializer_class = RepositoryShape
    filters = {"revision": "", "source": ""}
    filter_help = SOURCE

    def get(self, request: Request, owner: str, name: str) -> Response:
        revision = request.query_params.get("revision") or None
        repository = _client(request).repository(f"{owner}/{name}", revision)
        snapshot = live.read_snapshot_sync(live.redis_client())
        choices = choices_of(repository, snapshot, selectors.catalogue_by_name())
        found = {
            "name": repository.name,
            "commit": repository.commit,
            "is_gated": repository.is_gated,
            "choices": list(_choice_shapes(repository, revision, choices)),
        }
        return Response(RepositoryShape(found).data)


def _choice_shapes(
    repository: HubRepository, revision: str | None, choices: tuple[Choice, ...]
) -> Iterator[dict[str, Any]]:
    for choice in choices:
        offer = choice.offer
        yield {
            "label": offer.label,
            "model_name": offer.model_name,
            "files": [{"name": name, "num_bytes": repository.sizes[name]} for name in offer.names],
            "num_bytes": offer.num_bytes,
            "projector": offer.projector,
            "problem": offer.problem,
            "access_problem": offer.access_problem,
            "fits": choice.fits,
            "settings": offer.settings(repository, revision),
        }


def _client(request: Request) -> HubClient:
    from fleet.hub_client import HubClient  # takes a second, and few processes need it

    return HubClient(request.query_params.get("source") or None)
