"""``/api/series``: figures by time of the fleet, a model, a neuron, a device or an account."""

from __future__ import annotations

import time
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from fleet.api.access import ObjectView
from metering import selectors
from metering.api.problems import ProblemError
from metering.errors import MeteringValueError
from metering.nouns import SERIES
from metering.principal import Scope
from metering.series.figures import point_fields
from metering.series.steps import FLEET_NAME, Kind, kind_of, moment, range_of


class SeriesShape(serializers.Serializer[Any]):
    """``data`` has a point for each step, oldest first, the present one last. Percentiles and means
    are null where nothing was counted."""

    kind = serializers.ChoiceField(choices=[kind.value for kind in Kind])
    name = serializers.CharField()
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    step_s = serializers.IntegerField()
    data = serializers.ListField(  # type: ignore[assignment]
        child=serializers.DictField(),
        help_text="at; of devices busy_percent, memory_used_bytes, memory_bytes; else requests, "
        "answered, cancelled, refused, failed, errors (by code), first_token_p50_ms, "
        "first_token_p95_ms, total_p50_ms, total_p95_ms, tokens and tokens_per_s, "
        "cost_micro_usd, queue_depth (mean and max), in_flight.",
    )


class SeriesView(ObjectView):
    serializer_class = SeriesShape
    filters = SERIES.filters
    filter_help = SERIES.filter_help
    page_parameters = ()

    def ensure_may(self, request: Request) -> None:
        """An account's are for its people, operators and keys with ``accounts:read``. Raises
        ``ProblemError``."""
        if request.query_params.get("kind") != Kind.ACCOUNT:
            super().ensure_may(request)
            return
        caller = self.caller
        name = request.query_params.get("name", "")
        if caller.username is not None:
            may = caller.accounts is None or name in caller.accounts
        else:
            may = caller.has(Scope.ACCOUNTS_READ)
        if not may:
            raise ProblemError(
                403, "account_not_allowed", f"You may not see {name[:64]!r}.", param="name"
            )

    def get(self, request: Request) -> Response:
        given = request.query_params
        kind, name = kind_of(given.get("kind", Kind.FLEET)), given.get("name", FLEET_NAME)
        if bool(name) is (kind is Kind.FLEET):
            needed = "the fleet has no name" if name else f"give the name of the {kind}"
            raise MeteringValueError("name", needed)
        found = range_of(given.get("range", ""), given.get("step", ""), now_unix_s=time.time())
        points = selectors.series_points(
            kind=kind,
            name=name,
            since_unix_s=found.since_unix_s,
            until_unix_s=found.until_unix_s,
            step_s=found.step_s,
        )
        return Response(
            {
                "kind": kind.value,
                "name": name,
                "since": moment(found.since_unix_s).isoformat(),
                "until": moment(found.until_unix_s).isoformat(),
                "step_s": found.step_s,
                "data": [
                    {
                        "at": moment(point.at_unix_s).isoformat(),
                        **point_fields(kind, point.figures, found.step_s),
                    }
                    for point in points
                ],
            }
        )
