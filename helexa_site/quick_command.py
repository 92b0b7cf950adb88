"""What helexa's commands are made of."""

from __future__ import annotations

from django.core.management.base import BaseCommand


class QuickCommand(BaseCommand):
    """A command without Django's checks of the project, which import every page and take longer
    than most commands. No operator's mistake can break what they look at, and the tests run
    them."""

    requires_system_checks: list[str] = []
