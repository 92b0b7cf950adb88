"""The refusals of every operation in the OpenAPI document of ``/api/``: REST framework describes a
view's answers, not its exceptions."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any, Literal

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import get_doc
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers

from metering.api.problems import CONTENT_TYPE

REFUSALS = {
    "400": "a parameter, or the body, is not understood",
    "401": "the API key is missing or not valid",
    "403": "the caller may not do this",
    "404": "there is no such thing",
    "406": "no answer has a form that the caller accepts",
    "409": "the present state does not allow it",
    "415": "the body is no JSON",
    "422": "the model cannot be loaded as it is",
    "503": "the database, Redis, a neuron or the hub does not answer: try again",
}
READING = ("GET", "HEAD")
NOT_OF_READING = frozenset({"409", "415", "422"})
Direction = Literal["request", "response"]
JSON = "application/json"
ROWS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "object", "additionalProperties": {}},
}


class Problem(serializers.Serializer[Any]):
    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    code = serializers.CharField()
    detail = serializers.CharField()
    param = serializers.CharField(allow_null=True)


class ApiSchema(AutoSchema):
    """A view's ``flat_refusals``: the schema of refusals that are no problems."""

    def get_description(self) -> str:  # type: ignore[override]
        """The operation's docstring, else its view's own: a base class has nothing for callers."""
        return get_doc(self.operation()) or cleandoc(type(self.view).__doc__ or "")

    def operation(self) -> Any:
        return getattr(self.view, getattr(self.view, "action", self.method.lower()), None)

    def get_override_parameters(self) -> list[Any]:
        """Those of lists follow from their backends."""
        if self.method != "GET" or self._is_list_view():
            return []
        about = getattr(self.view, "filter_help", {})
        names = getattr(self.view, "filters", ())
        return [OpenApiParameter(name, description=about.get(name, "")) for name in names]

    def get_request_serializer(self) -> Any:
        return super().get_request_serializer() if self._has_shape() else OpenApiTypes.OBJECT

    def get_response_serializers(self) -> Any:
        return super().get_response_serializers() if self._has_shape() else OpenApiTypes.OBJECT

    def _has_shape(self) -> bool:
        return getattr(self.view, "serializer_class", None) not in (None, serializers.Serializer)

    def _get_response_bodies(self, direction: Direction = "response") -> Any:
        responses = super()._get_response_bodies(direction)
        for status, description in REFUSALS.items():
            if status in responses or (self.method in READING and status in NOT_OF_READING):
                continue
            refusal: dict[str, Any] = self._get_response_for_code(  # type: ignore[no-untyped-call]
                Problem, status, [CONTENT_TYPE], direction
            )
            flat = getattr(self.view, "flat_refusals", None)
            if flat is not None:
                refusal["content"][JSON] = {"schema": flat}
            responses[status] = {**refusal, "description": description}
        return responses
