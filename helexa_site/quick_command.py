"""What helexa's commands are made of."""

from __future__ import annotations

from django.core.management.base import BaseCommand


class QuickCommand(BaseCommand):
    """Without Django's checks of the project, which import every page and take longer than most
    commands: an operator's mistake cannot break what they look at. The tests run them."""

    requires_system_checks: list[str] = []
