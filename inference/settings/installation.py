"""Settings of the environment that ``serve`` makes, and of every process's log."""

from __future__ import annotations

from pathlib import Path

from inference.settings.setting import (
    FILE_PATH,
    FLAG,
    LOG_LEVELS,
    URL_OR_OFF,
    LogLevel,
    Setting,
    choice,
    url,
    whole,
)

TORCH_CPU_INDEX_URL = "https://download.pytorch.org/whl/cpu"
SERVER = url("http", "https", rule="an address like http://gpu-box:31313")

LOG_FORMAT = Setting("HELEXA_LOG_FORMAT", choice("text", "json"), "text")
LOG_LEVEL = Setting("HELEXA_LOG_LEVEL", LOG_LEVELS, LogLevel())
TORCH_CPU_INDEX: Setting[str | None] = Setting(
    "HELEXA_TORCH_CPU_INDEX", URL_OR_OFF, TORCH_CPU_INDEX_URL, reads_blank=True
)
REQUIRE_HASHES = Setting("HELEXA_REQUIRE_HASHES", FLAG, True)
VENV: Setting[Path | None] = Setting("HELEXA_VENV", FILE_PATH)
ENVIRONMENT_ATTEMPT = Setting(
    "HELEXA_ENVIRONMENT_ATTEMPT", whole(0, 1000, "attempts"), 0, is_internal=True
)
URL: Setting[str | None] = Setting("HELEXA_URL", SERVER)
