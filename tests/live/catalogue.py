"""Models put into a running server's catalogue."""

from __future__ import annotations

import subprocess
import sys
import uuid
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
    given = ", ".join(f"{key}={value!r}" for key, value in {"name": name, **fields}.items())
    imports = "from fleet import services; from metering.actor import COMMAND"
    code = f"{imports}; services.catalogue_model_create(actor=COMMAND, {given})"
    subprocess.run(
        [sys.executable, str(REPOSITORY_DIR / "manage.py"), "shell", "-v", "0", "-c", code],
        env=helexa.find("gateway").environ(),
        check=True,
        timeout=WAIT_TIMEOUT_S,
    )
    url = f"{helexa.url}/v1/models/{name}"
    wait_until(lambda: httpx.get(url, timeout=30.0).status_code == 200, "the catalogue is read")
