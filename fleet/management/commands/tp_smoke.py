"""``manage.py tp_smoke``, in a process of its own: this one has no tensors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from helexa_site.management.base import QuickCommand

SMOKE = "inference.engine.divided.rank_smoke"
REPOSITORY_DIR = Path(__file__).resolve().parents[3]


class Command(QuickCommand):
    help = (
        "Loads a tiny random model on several ranks of this host, compares its logits with one "
        "rank's and prints what each took. Exit code 0: they agree."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--ranks", type=int, default=2, help="how many (2)")
        parser.add_argument(
            "--device", choices=("cpu", "cuda"), help="cards where there are enough, else the CPU"
        )

        parser.add_argument("--cuda-devices", metavar="0,1", help="which cards, one for each rank")

    def handle(self, *args: Any, **options: Any) -> None:
        command = [sys.executable, "-m", SMOKE, "--ranks", str(options["ranks"])]
        if options["device"] is not None:
            command += ["--device", options["device"]]
        if options["cuda_devices"] is not None:
            command += ["--cuda-devices", options["cuda_devices"]]
        code = subprocess.run(command, check=False, cwd=REPOSITORY_DIR).returncode
        if code:
            sys.exit(code)
