"""A whole server whose engines follow scripts, and the SDK clients that talk to it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.live.scripted.model import FAMILIES, ScriptedModel, make_model
from tests.live.serving import Serve, operate, wait_until_offered

ALIAS, ALIASED = "claude-local", "hermes"
"""Some clients insist on names of their own."""
ENGINE = Path(__file__).parent / "engine.py"


class ScriptedServe(Serve):
    """``serve`` without a model of its own; ``models`` are in the catalogue once it is ready, and
    each is loaded by the first request for it."""

    def __init__(
        self,
        data_dir: Path,
        scripts_dir: Path,
        prices: Mapping[str, int] | None = None,
        **environment: str,
    ) -> None:
        """``prices``: the fields of a catalogue's model that name them, of all of its models."""
        scripts_dir.mkdir()
        self.scripts_dir = scripts_dir
        self.models: Mapping[str, ScriptedModel] = {
            name: make_model(name, family, scripts_dir / name) for name, family in FAMILIES.items()
        }
        self._prices = prices or {}
        command = shlex.join([sys.executable, str(ENGINE)])
        super().__init__(data_dir, "--no-model", HELEXA_ENGINE_COMMAND=command, **environment)

    def wait_ready(self) -> str:
        url = super().wait_ready()
        self._add_models()
        return url

    def _add_models(self) -> None:
        for model in self.models.values():
            source = f"path:{model.folder}"
            operate(self, "POST", "/api/catalogue", name=model.name, source=source, **self._prices)
        operate(self, "POST", "/api/aliases", name=ALIAS, model=ALIASED)
        for name in (*self.models, ALIAS):
            wait_until_offered(self, name, 200)
