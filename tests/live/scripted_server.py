"""A whole server whose engines follow scripts, and the SDK clients that talk to it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx

from tests.live.scripted_model import FAMILIES, ScriptedModel, make_model
from tests.live.serving import REPOSITORY_DIR, WAIT_TIMEOUT_S, Serve, wait_until

ALIAS, ALIASED = "claude-local", "hermes"
"""Some clients insist on names of their own."""
ENGINE = Path(__file__).parent / "scripted_engine.py"


class ScriptedServe(Serve):
    """``serve`` without a model of its own; ``models`` are in the catalogue once it is ready, and
    each is loaded by the first request for it."""

    def __init__(self, data_dir: Path, scripts_dir: Path, **environment: str) -> None:
        scripts_dir.mkdir()
        self.scripts_dir = scripts_dir
        self.models: Mapping[str, ScriptedModel] = {
            name: make_model(name, family, scripts_dir / name) for name, family in FAMILIES.items()
        }
        command = shlex.join([sys.executable, str(ENGINE)])
        super().__init__(data_dir, "--no-model", HELEXA_ENGINE_COMMAND=command, **environment)

    def wait_ready(self) -> str:
        url = super().wait_ready()
        self._add_models()
        return url

    def _add_models(self) -> None:
        """As the admin's form does it."""
        lines = [
            "services.catalogue_model_create("
            f"actor=COMMAND, name={model.name!r}, source='path:{model.folder}')"
            for model in self.models.values()
        ]
        lines.append(f"model = CatalogueModel.objects.get(name={ALIASED!r})")
        lines.append(f"services.alias_create(actor=COMMAND, name={ALIAS!r}, model=model)")
        imports = [
            "from fleet import services",
            "from fleet.models import CatalogueModel",
            "from metering.actor import COMMAND",
        ]
        code = "\n".join([*imports, *lines])
        subprocess.run(
            [sys.executable, str(REPOSITORY_DIR / "manage.py"), "shell", "-v", "0", "-c", code],
            env=self.find("gateway").environ(),
            check=True,
            timeout=WAIT_TIMEOUT_S,
        )
        wait_until(self._offers_models, "the catalogue is read")

    def _offers_models(self) -> bool:
        offered = httpx.get(f"{self.url}/v1/models", timeout=30.0).json()["data"]
        return {model["id"] for model in offered} >= set(self.models)
