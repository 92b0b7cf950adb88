from __future__ import annotations

from typing import Any

from fleet import services
from helexa_site.management.base import QuickCommand
from metering.audit import COMMAND


class Command(QuickCommand):
    help = "Put the small default model into the catalogue, unless it is there."

    def handle(self, *args: Any, **options: Any) -> None:
        model = services.default_model_ensure(actor=COMMAND)
        self.stdout.write(f"{model.name}: {model.settings().source}")
