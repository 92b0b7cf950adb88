"""The admin of rows that neurons report: looked at, never edited; the list refreshes itself."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from fleet.admin.unfold_types import UnfoldAdmin


class ReportedAdmin(UnfoldAdmin):
    """A neuron is the source of truth, so there is nothing to add, change or delete here."""

    list_before_template = "fleet/refreshing_list.html"
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Users who may change the catalogue may also load and unload."""
        return request.user.has_perm("fleet.change_cataloguemodel")
