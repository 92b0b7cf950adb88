"""The settings of this gateway's process, as the admin's page shows them. They are read from its
environment when it starts, so nothing here changes one."""

from __future__ import annotations

from typing import Any, cast

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.response import Response

from fleet.api.access import COMMAND_CALLER, Call, FleetView
from helexa_site.settings_page import ENVIRONMENT, Row, rows_of
from metering.api.authentication import Caller
from metering.api.problems import ProblemError
from metering.principal import Scope


class SettingShape(serializers.Serializer[Any]):
    name = serializers.CharField()
    value = serializers.CharField(help_text="As it is set; empty: it is not.")
    meaning = serializers.CharField()


class SettingsView(FleetView):
    """For superusers, and keys with ``fleet:write``: addresses and paths of the host are among the
    values. Secrets are not shown."""

    read_scope = Scope.FLEET_WRITE
    filter_backends = ()
    serializer_class = SettingShape

    def ensure_may(self, call: Call) -> None:
        caller = cast(Caller, call.auth)
        is_person = caller is not COMMAND_CALLER and caller.username is not None
        if is_person and not call.user.is_superuser:
            raise ProblemError(403, "insufficient_scope", "Superusers alone see the settings.")
        super().ensure_may(call)

    @extend_schema(responses={200: SettingShape(many=True)})
    def get(self, call: Call) -> Response:
        shown = [_shown(row) for row in rows_of(ENVIRONMENT)]
        return self.get_paginated_response(self.paginate_queryset(shown))


class SettingView(SettingsView):
    pagination_class = None

    @extend_schema(responses={200: SettingShape}, operation_id="settings_retrieve_one")
    def get(self, call: Call, name: str) -> Response:  # type: ignore[override]
        for row in rows_of(ENVIRONMENT):
            if row.setting.name == name:
                return Response(_shown(row))
        raise ProblemError(404, "setting_not_found", f"There is no setting named {name!r}.")


def _shown(row: Row) -> dict[str, str]:
    return {"name": row.setting.name, "value": row.value, "meaning": row.setting.plain_doc}
