"""The base of helexa's commands."""

from __future__ import annotations

from django.core.management.base import BaseCommand


class QuickCommand(BaseCommand):
    """A command without Django's checks of the project, which import every page and take longer
    than most commands. They concern no setting of an operator's, and the tests run them."""

    requires_system_checks: list[str] = []
