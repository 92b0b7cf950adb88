"""Who reads the bench's results: every caller who may read the fleet, or everybody with
``HELEXA_BENCH_PUBLIC``."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.response import Response

from fleet.api.access import READING, Call, FleetView
from fleet.api.documents import AnonymousScheme
from metering.api.authentication import Caller
from metering.api.problems import ProblemError
from metering.bench.errors import BenchError, BenchValueError


class PublicAuthentication(BaseAuthentication):
    """No caller is authenticated: a key that is sent is ignored."""

    def authenticate(self, _request: Request) -> tuple[AnonymousUser, Caller]:
        return AnonymousUser(), Caller(principal=None)


class PublicScheme(AnonymousScheme):  # type: ignore[no-untyped-call]
    target_class = "metering.bench.api.access.PublicAuthentication"


@extend_schema(responses={200: OpenApiTypes.OBJECT})
class BenchView(FleetView):
    """``parameters``: those of the query; others are refused."""

    pagination_class = None
    filter_backends = ()
    serializer_class = serializers.Serializer
    parameters: tuple[str, ...] = ()

    def get_authenticators(self) -> list[Any]:
        if settings.CONFIG.has_public_bench:
            return [PublicAuthentication()]
        return super().get_authenticators()

    def ensure_may(self, call: Call) -> None:
        if not (settings.CONFIG.has_public_bench and call.method in READING):
            super().ensure_may(call)

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, BenchValueError):
            exc = ProblemError(400, "invalid_value", str(exc), param=exc.field)
        elif isinstance(exc, BenchError):
            exc = ProblemError(400, "invalid_value", str(exc))
        return super().handle_exception(exc)

    def ensure_known_parameters(self, call: Call) -> None:
        for name in call.query_params:
            if name not in {*self.parameters, "account", "format"}:
                detail = f"There is no parameter {name!r} here."
                raise ProblemError(400, "unknown_parameter", detail, param=name)

    def word(self, name: str, *, is_needed: bool = False) -> str:
        """Raises ``ProblemError``."""
        word: str = self.request.query_params.get(name, "")
        if "\x00" in word or (is_needed and not word):
            raise ProblemError(400, "invalid_value", f"{name} is needed.", param=name)
        return word

    def number(self, name: str, default: int, *, most: int) -> int:
        """Raises ``ProblemError``."""
        word = self.word(name)
        if not word:
            return default
        if not (word.isascii() and word.isdigit() and len(word) < 10 and 0 < int(word) <= most):
            raise ProblemError(
                400, "invalid_value", f"{name} is a number from 1 to {most}.", param=name
            )
        return int(word)
