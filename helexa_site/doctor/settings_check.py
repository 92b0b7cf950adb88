"""The settings: those that are no settings of ours, and those that do not go together."""

from __future__ import annotations

import difflib
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from helexa_site.bootstrap.arguments import is_loopback
from helexa_site.config import SECRET_KEY_FILE, Config
from helexa_site.doctor.findings import Finding, failed, ok, warning

CHECK = "settings"
PREFIX = "HELEXA_"
VARIABLES = frozenset(
    {
        "HELEXA_ALLOWED_HOSTS",
        "HELEXA_ALLOWED_ORIGINS",
        "HELEXA_ALLOW_ANONYMOUS",
        "HELEXA_ALWAYS_STREAM_USAGE",
        "HELEXA_API_KEY",
        "HELEXA_BENCH_PUBLIC",
        "HELEXA_CPU_KV_SHARE",
        "HELEXA_CSRF_TRUSTED_ORIGINS",
        "HELEXA_DATA_DIR",
        "HELEXA_DEBUG",
        "HELEXA_ENGINE_CHECKS",
        "HELEXA_ENGINE_COMMAND",
        "HELEXA_ENGINE_THREADS",
        "HELEXA_ENVIRONMENT_ATTEMPT",
        "HELEXA_LEDGER_RETENTION_DAYS",
        "HELEXA_LISTEN_HOST",
        "HELEXA_LOG_FORMAT",
        "HELEXA_MAX_BODY_BYTES",
        "HELEXA_MAX_OPEN_BODY_BYTES",
        "HELEXA_MAX_OPEN_REQUESTS",
        "HELEXA_MAX_STORED_RESPONSES",
        "HELEXA_MAX_STORED_RESPONSE_BYTES",
        "HELEXA_MAX_WAITING_REQUESTS",
        "HELEXA_METRICS_LISTEN",
        "HELEXA_NEURON_DRAIN_S",
        "HELEXA_REDIS_STALL_S",
        "HELEXA_REQUEST_TIMEOUT_S",
        "HELEXA_RESPONSE_RETENTION_DAYS",
        "HELEXA_SECRET_KEY",
        "HELEXA_SERVE_KEY",
        "HELEXA_SIMULATED_DEVICES",
        "HELEXA_STEP_TIMEOUT_S",
        "HELEXA_TORCH_CPU_INDEX",
        "HELEXA_TRUSTED_PROXIES",
        "HELEXA_UNKNOWN_FIELDS",
        "HELEXA_URL",
        "HELEXA_VENV",
    }
)
"""What the code reads. A test finds those that it no longer does."""
NOT_OURS = frozenset({"HELEXA_TEST_RUN"})


def settings_findings(config: Config, environment: Mapping[str, str]) -> Iterator[Finding]:
    findings = [
        *_unknown_variables(environment),
        *_who_may_ask(config),
        *_secret_key(config),
        *([_debug()] if config.debug else []),
    ]
    # The doctor itself says what the gateway listens on.
    names = sorted((VARIABLES - {"HELEXA_LISTEN_HOST"}) & environment.keys())
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
