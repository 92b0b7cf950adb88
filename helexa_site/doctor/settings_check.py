"""The settings: those that are no settings of ours, and those that do not go together."""

from __future__ import annotations

import difflib
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from helexa_site.bootstrap.arguments import is_loopback
from helexa_site.config import SECRET_KEY_FILE, Config, settings_of_config
from helexa_site.doctor.findings import Finding, failed, ok, warning

CHECK = "settings"
PREFIX = "HELEXA_"
OF_OTHER_PROCESSES = frozenset(
    {
        # commands and the start
        "HELEXA_ENVIRONMENT_ATTEMPT",
        "HELEXA_LOG_FORMAT",
        "HELEXA_REQUIRE_HASHES",
        "HELEXA_TORCH_CPU_INDEX",
        "HELEXA_URL",
        "HELEXA_VENV",
        # neurons and their engines
        "HELEXA_CPU_KV_SHARE",
        "HELEXA_ENGINE_CHECKS",
        "HELEXA_ENGINE_COMMAND",
        "HELEXA_ENGINE_THREADS",
        "HELEXA_NEURON_DRAIN_S",
        "HELEXA_SIMULATED_DEVICES",
        "HELEXA_STEP_TIMEOUT_S",
        "HELEXA_VISION_MAX_PIXELS",
    }
)
"""Who reads these does not read the gateway's settings. A test holds them to the code."""
VARIABLES = OF_OTHER_PROCESSES | {name for name in settings_of_config() if name.startswith(PREFIX)}
SET_BY_THE_START = frozenset({"HELEXA_ENVIRONMENT_ATTEMPT", "HELEXA_LISTEN_HOST"})
"""``manage.py`` and the doctor set these themselves; the operator has not."""
NOT_OURS = frozenset({"HELEXA_TEST_RUN"})


def settings_findings(config: Config, environment: Mapping[str, str]) -> Iterator[Finding]:
    findings = [
        *_unknown_variables(environment),
        *_who_may_ask(config),
        *_secret_key(config),
        *([_debug()] if config.debug else []),
    ]
    names = sorted((VARIABLES - SET_BY_THE_START) & environment.keys())
    yield from findings
    if not findings:
        yield ok(CHECK, f"understood: {', '.join(names) or 'all are at their defaults'}")


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in VARIABLES | NOT_OURS:
            continue
        near = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.8)
        yield warning(
            CHECK,
            f"{name} is no setting that is known here",
            f"did you mean {near[0]}?" if near else "remove it; the settings page lists them all",
        )


def _who_may_ask(config: Config) -> Iterator[Finding]:
    host = config.listen_host
    if config.allow_anonymous and host is not None and not is_loopback(host):
        yield warning(
            CHECK,
            f"anybody who reaches {host} may use every model without a key",
            "set HELEXA_ALLOW_ANONYMOUS=0 and make keys: manage.py keys create ACCOUNT",
        )


def _secret_key(config: Config) -> Iterator[Finding]:
    path = config.data_dir / SECRET_KEY_FILE
    if config.secret_key is not None or not path.exists():
        return
    if _is_open_to_others(path):
        yield failed(
            CHECK,
            f"others may read {path}, which signs logins and API keys",
            f"chmod 600 {path}; if somebody may have read it, remove it and make new API keys",
        )


def _is_open_to_others(path: Path) -> bool:
    return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def _debug() -> Finding:
    return warning(
        CHECK,
        "HELEXA_DEBUG is on: pages of errors show settings to whoever sees them",
        "unset HELEXA_DEBUG",
    )
