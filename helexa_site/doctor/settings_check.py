"""The settings: those that are no settings of ours, and those that do not go together."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from helexa_site.bootstrap.arguments import is_loopback
from helexa_site.config import SECRET_KEY_FILE, Config
from helexa_site.doctor.findings import Finding, failed, ok, warning
from helexa_site.program import program
from inference.settings.gateway import LISTEN_HOST, TRUSTED_PROXIES
from inference.settings.table import NAMES, PREFIX, SETTINGS, unknown_names

OURS = {name for name in NAMES if name.startswith(PREFIX)}
SET_BY_THE_START = {setting.name for setting in SETTINGS if setting.is_internal} | {
    LISTEN_HOST.name
}
"""``manage.py`` and the doctor set these themselves; the operator has not."""


def settings_findings(config: Config, environment: Mapping[str, str]) -> Iterator[Finding]:
    findings = [
        *unknown_variables(environment),
        *_who_may_ask(config),
        *_proxy(config),
        *_secret_key(config),
        *([_debug()] if config.debug else []),
    ]
    names = sorted((OURS - SET_BY_THE_START) & environment.keys())
    yield from findings
    if not findings:
        yield ok("settings", f"understood: {', '.join(names) or 'all are at their defaults'}")


def unknown_variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    for name, near in unknown_names(environment):
        yield warning(
            "settings",
            f"{name} is no setting that is known here",
            f"did you mean {near}?" if near else "remove it; the settings page lists them all",
        )


def _who_may_ask(config: Config) -> Iterator[Finding]:
    host = config.listen_host
    if config.allow_anonymous and host is not None and not is_loopback(host):
        yield warning(
            "settings",
            f"anybody who reaches {host} may use every model without a key",
            f"set HELEXA_ALLOW_ANONYMOUS=0 and make keys: {program()} keys create ACCOUNT",
        )


def _proxy(config: Config) -> Iterator[Finding]:
    is_https = (config.public_url or "").startswith("https://")
    if is_https and not config.trusted_proxies:
        yield warning(
            "settings",
            f"{config.public_url} is a proxy's, and no proxy is trusted: which requests came by "
            "HTTPS is not known, so browsers get no Strict-Transport-Security",
            f"set {TRUSTED_PROXIES.name} to the proxy's address",
        )


def _secret_key(config: Config) -> Iterator[Finding]:
    path = config.data_dir / SECRET_KEY_FILE
    if config.secret_key is not None or not path.exists():
        return
    if _is_open_to_others(path):
        yield failed(
            "settings",
            f"others may read {path}, which signs logins and API keys",
            f"chmod 600 {path}; if somebody may have read it, remove it and make new API keys",
        )


def _is_open_to_others(path: Path) -> bool:
    return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def _debug() -> Finding:
    return warning(
        "settings",
        "HELEXA_DEBUG is on: pages of errors show settings to whoever sees them",
        "unset HELEXA_DEBUG",
    )
