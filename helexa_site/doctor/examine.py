"""All checks, one after the other, their findings, and the checks of packages and settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from importlib import metadata
from typing import Any

from helexa_site.addresses import is_loopback
from helexa_site.bootstrap.environment import STAMP, installed_version, pins_of, unmet, venv_dir
from helexa_site.config import SECRET_KEY_FILE, Config, database_settings, read_config
from helexa_site.program import REPOSITORY_DIR, program
from inference.settings.gateway import LISTEN_HOST, TRUSTED_PROXIES
from inference.settings.setting import SettingError
from inference.settings.table import NAMES, PREFIX, SETTINGS, refusals, unknown_names

SET_BY_THE_START = {setting.name for setting in SETTINGS if setting.is_internal} | {
    LISTEN_HOST.name
}
"""``manage.py`` and the doctor set these themselves; the operator has not."""
OURS = {name for name in NAMES if name.startswith(PREFIX)} - SET_BY_THE_START


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """What is examined works now, and may not later."""
    FAILED = "failed"


MARKS = {Level.OK: "ok  ", Level.WARNING: "warn", Level.FAILED: "FAIL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str = ""
    """``run_checks`` adds the name of the check where it is empty."""
    level: Level
    text: str
    mend: str = ""
    """The remedy."""


def ok(text: str) -> Finding:
    return Finding(level=Level.OK, text=text)


def warning(text: str, mend: str) -> Finding:
    return Finding(level=Level.WARNING, text=text, mend=mend)


def failed(text: str, mend: str) -> Finding:
    return Finding(level=Level.FAILED, text=text, mend=mend)


def run_checks(checks: Mapping[str, Callable[[], Iterator[Finding]]]) -> Iterator[Finding]:
    for name, check in checks.items():
        try:
            for finding in check():
                yield replace(finding, check=finding.check or name)
        except Exception as error:  # noqa: BLE001 - the other checks continue
            reason = f"{type(error).__name__}: {error}"
            yield replace(failed(f"this check broke: {reason}", "report this line"), check=name)


def lines_of(finding: Finding) -> list[str]:
    lines = [f"{MARKS[finding.level]} {finding.check:<10} {finding.text}"]
    if finding.mend:
        lines.append(f"{'':16}-> {finding.mend}")
    return lines


def object_of(findings: Sequence[Finding]) -> dict[str, Any]:
    return {"ok": not has_failed(findings), "findings": [asdict(one) for one in findings]}


def has_failed(findings: Sequence[Finding]) -> bool:
    return any(finding.level is Level.FAILED for finding in findings)


def examine(host: str, port: int) -> Iterator[Finding]:
    """``host`` and ``port`` are the gateway's."""
    # Without settings nothing else can be checked.
    refused = list(refusals(os.environ))
    if not refused:
        config = read_config()
        try:
            database_settings(config.database_url)
        except SettingError as error:
            refused = [error]
    if refused:
        yield from run_checks({"settings": lambda: refused_settings(refused)})
        return
    import django

    django.setup()
    # These import models.
    from helexa_site.doctor import host_checks, service_checks

    metrics = config.metrics.at(host)
    yield from run_checks(
        {
            "packages": package_findings,
            "settings": lambda: settings_findings(config, os.environ),
            "database": lambda: service_checks.database_findings(config),
            "redis": lambda: service_checks.redis_findings(config),
            "disk": lambda: host_checks.disk_findings(config, os.environ),
            "files": host_checks.descriptor_findings,
            "gpu": host_checks.gpu_findings,
            "ports": lambda: host_checks.port_findings(config.data_dir, host, port, metrics),
            "fleet": service_checks.fleet_findings,
        }
    )


def package_findings() -> Iterator[Finding]:
    # A gateway of its own has no torch.
    is_neuron = installed_version("torch") is not None
    name = "requirements.txt" if is_neuron else "requirements-gateway.txt"
    if (REPOSITORY_DIR / name).is_file():
        missing = unmet(pins_of(REPOSITORY_DIR / name))
        how = f"remove {venv_dir() / STAMP}: the next {program()} serve or neuron installs them"
    else:
        name, how = "the wheel", "install the wheel again with pip"
        missing = unmet(metadata.requires("helexa") or [], "neuron" if is_neuron else "")
    if missing:
        yield warning(f"not as {name} pins them: {', '.join(missing)}", how)
    else:
        yield ok(f"as {name} pins them")


def refused_settings(refused: list[SettingError]) -> Iterator[Finding]:
    for error in refused:
        yield failed(str(error), "mend that variable: the settings page explains it")
    yield from _unknown_variables(os.environ)


def settings_findings(config: Config, environment: Mapping[str, str]) -> Iterator[Finding]:
    findings = [*_unknown_variables(environment), *_risky_settings(config)]
    names = ", ".join(sorted(OURS & environment.keys())) or "all are at their defaults"
    yield from findings or [ok(f"understood: {names}")]


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    for name, near in unknown_names(environment):
        mend = f"did you mean {near}?" if near else "remove it; the settings page lists them all"
        yield warning(f"{name} is no setting that is known here", mend)


def _risky_settings(config: Config) -> Iterator[Finding]:
    host, key = config.listen_host, config.data_dir / SECRET_KEY_FILE
    if config.allow_anonymous and host is not None and not is_loopback(host):
        yield warning(
            f"anybody who reaches {host} may use every model without a key",
            f"set HELEXA_ALLOW_ANONYMOUS=0 and make keys: {program()} keys create ACCOUNT",
        )
    if (config.public_url or "").startswith("https://") and not config.trusted_proxies:
        yield warning(
            f"{config.public_url} is a proxy's, and no proxy is trusted: which requests came by "
            "HTTPS is not known, so browsers get no Strict-Transport-Security",
            f"set {TRUSTED_PROXIES.name} to the proxy's address",
        )
    if config.secret_key is None and key.exists() and key.stat().st_mode & 0o077:
        yield failed(
            f"others may read {key}, which signs logins and API keys",
            f"chmod 600 {key}; if somebody may have read it, remove it and make new API keys",
        )
    if config.debug:
        yield warning(
            "HELEXA_DEBUG is on: pages of errors show settings to whoever sees them",
            "unset HELEXA_DEBUG",
        )
