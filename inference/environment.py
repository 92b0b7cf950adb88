"""Which variables of an environment are secret, and which process gets which of them.

A process has what it needs: what it lacks, it cannot lose. Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from enum import Enum
from pathlib import Path

DATABASE = frozenset({"DATABASE_URL", "PGPASSWORD", "PGPASSFILE"})
REDIS = frozenset({"REDIS_URL"})
SIGNING = frozenset({"HELEXA_SECRET_KEY"})
API_KEY = frozenset({"HELEXA_API_KEY", "HELEXA_SERVE_KEY"})
HUGGINGFACE = frozenset({"HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN"})
COLLECTOR_HEADERS = frozenset({"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"})
COLLECTOR = COLLECTOR_HEADERS | {
    *("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
    *("OTEL_EXPORTER_OTLP_CLIENT_KEY", "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY"),
}
"""A collector's address may have a password in it."""

PLAIN_SECRETS = (
    SIGNING | API_KEY | COLLECTOR_HEADERS | {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "PGPASSWORD"}
)
"""Variables whose whole value is secret."""
SECRET_NAMES = DATABASE | REDIS | SIGNING | API_KEY | HUGGINGFACE | COLLECTOR
SECRET_NAME = re.compile(
    r"PASSW|SECRET|CREDENTIAL|(^|_)(AUTH|DSN|KEY|PAT|TOKEN)S?(_|$)", re.IGNORECASE
)
"""Secrets of other programs, which often share our environment."""
SECRET_URL = re.compile(r"://[^\s/@]*:[^\s/@]+@")
URLS_OF_DOWNLOADS = re.compile(r"_PROXY$|^(PIP|UV)_", re.IGNORECASE)
"""Proxies and package indexes: downloads need them, passwords included."""


class Role(Enum):
    GATEWAY = DATABASE | REDIS | SIGNING | API_KEY | COLLECTOR
    SERVE = DATABASE | REDIS | SIGNING | {"HELEXA_SERVE_KEY"}  # for its control
    NEURON = REDIS | HUGGINGFACE  # which it hands on to its engines
    ENGINE = HUGGINGFACE
    OTHER = frozenset[str]()


def is_secret(name: str, value: str) -> bool:
    if name in SECRET_NAMES or SECRET_NAME.search(name):
        return True
    return bool(SECRET_URL.search(value)) and not URLS_OF_DOWNLOADS.search(name)


def environment_for(role: Role, environment: Mapping[str, str]) -> dict[str, str]:
    tokens, bench_keys = named_secrets(environment)
    kept = role.value if role is Role.OTHER else role.value | tokens
    if role is Role.SERVE:
        kept |= bench_keys
    return {
        name: value
        for name, value in environment.items()
        if name in kept or not (name in tokens | bench_keys or is_secret(name, value))
    }


def child_environment(role: Role) -> dict[str, str]:
    package_dir = str(Path(__file__).resolve().parent.parent)
    paths = [package_dir, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    python_path = os.pathsep.join(dict.fromkeys(paths))
    return environment_for(role, os.environ) | {"PYTHONPATH": python_path}


def named_secrets(environment: Mapping[str, str]) -> tuple[frozenset[str], frozenset[str]]:
    """A wrong setting gives none: the process refuses it at its start."""
    from inference.settings.setting import SettingError  # these import SECRET_NAMES from here
    from inference.settings.storage import BENCH_VARIABLES, SOURCES

    tokens, bench_keys = frozenset[str](), frozenset[str]()
    with suppress(SettingError):
        tokens = SOURCES.read(environment).token_variables
    with suppress(SettingError):
        bench_keys = frozenset(BENCH_VARIABLES.read(environment))
    return tokens, bench_keys


def forget_secrets(environment: MutableMapping[str, str], but_of: Role = Role.OTHER) -> None:
    for name in environment.keys() - environment_for(but_of, environment).keys():
        del environment[name]
