"""Models put into a running server's catalogue."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import httpx

from tests.live.serving import REPOSITORY_DIR, WAIT_TIMEOUT_S, Serve, wait_until

KV_BYTES = 48 * 1024 * 1024
"""So little that a few long prompts queue for it."""


def add_model(helexa: Serve, gguf: Path) -> str:
    """A file of the default model, under a new name."""
    name = f"again-{uuid.uuid4().hex[:8]}"
    create_model(helexa, name=name, source=f"path:{gguf}", kv_memory_bytes=KV_BYTES)
    return name


def create_model(helexa: Serve, *, name: str, **fields: object) -> None:
    """As an operator's command does it; returns when the gateway knows it."""
    create_models(helexa, {"name": name, **fields})


def create_models(helexa: Serve, *models: Mapping[str, object]) -> None:
    """In one process: each is a second or two."""
    run(
        helexa,
        "\n".join(
            f"services.catalogue_model_create(actor=COMMAND, **{dict(fields)!r})"
            for fields in models
        ),
    )
    for fields in models:
        wait_until_offered(helexa, str(fields["name"]), 200)


def withdraw_model(helexa: Serve, name: str) -> None:
    """It is not offered any more: other tests that use this server do not know it."""
    lines = (
        "from fleet.models import CatalogueModel",
        f"model = CatalogueModel.objects.get(name={name!r})",
        "model.enabled = False",
        "services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=['enabled'])",
    )
    run(helexa, "\n".join(lines))
    wait_until_offered(helexa, name, 404)


def run(helexa: Serve, code: str) -> str:
    """What it prints."""
    imports = "from fleet import services\nfrom metering.actor import COMMAND\n"
    command = [sys.executable, str(REPOSITORY_DIR / "manage.py"), "shell", "-v", "0", "-c"]
    done = subprocess.run(
        [*command, imports + code],
        env=helexa.find("gateway").environ(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=WAIT_TIMEOUT_S,
    )
    return done.stdout


def wait_until_offered(helexa: Serve, name: str, status: int) -> None:
    url = f"{helexa.url}/v1/models/{name}"
    wait_until(lambda: httpx.get(url, timeout=30.0).status_code == status, "the catalogue is read")
