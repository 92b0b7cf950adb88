"""The page of one object, which shows more of it than its form."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse

from fleet.admin.unfold_types import UnfoldAdmin


class HomePageAdmin(UnfoldAdmin):
    """An object's page is its home: above the form stands everything else of it."""

    def home_context(self, obj: Any) -> dict[str, Any]:
        """The context of ``change_form_outer_before_template``."""
        raise NotImplementedError

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        shown = self.get_object(request, unquote(object_id))
        context = {} if shown is None else self.home_context(shown)
        return super().change_view(request, object_id, form_url, context | (extra_context or {}))
