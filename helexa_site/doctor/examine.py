"""All checks, one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata

from helexa_site.bootstrap.arguments import DoctorOptions, is_loopback
from helexa_site.bootstrap.environment import STAMP, installed_version, pins_of, unmet, venv_dir
from helexa_site.config import SECRET_KEY_FILE, Config, read_config
from helexa_site.databases import database_settings
from helexa_site.doctor.findings import Finding, failed, ok, warning
from helexa_site.program import REPOSITORY_DIR, program
from inference.settings.gateway import LISTEN_HOST, TRUSTED_PROXIES
from inference.settings.setting import SettingError
from inference.settings.table import NAMES, PREFIX, SETTINGS, refusals, unknown_names

Check = tuple[str, Callable[[], Iterator[Finding]]]
REQUIREMENTS = "requirements.txt"
GATEWAY_REQUIREMENTS = "requirements-gateway.txt"


def examine(options: DoctorOptions) -> Iterator[Finding]:
    # Without settings nothing else can be checked.
    if refused := list(refusals(os.environ)):
        yield from map(_refused, refused)
        yield from unknown_variables(os.environ)
        return
    config = read_config()
    try:
        database_settings(config.database_url)
    except SettingError as error:
        yield _refused(error)
        return
    yield from run_checks(_checks(config, options))


def _refused(error: SettingError) -> Finding:
    return failed("settings", str(error), "mend that variable: the settings page explains it")


def run_checks(checks: Sequence[Check]) -> Iterator[Finding]:
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001 - the other checks continue
            yield failed(
                name, f"this check broke: {type(error).__name__}: {error}", "report this line"
            )


def _checks(config: Config, options: DoctorOptions) -> tuple[Check, ...]:
    import django

    django.setup()
    # These import models.
    from helexa_site.doctor.host_checks import (
        descriptor_findings,
        disk_findings,
        gpu_findings,
        port_findings,
    )
    from helexa_site.doctor.service_checks import database_findings, fleet_findings, redis_findings

    metrics = config.metrics.at(options.host)
    return (
        ("packages", package_findings),
        ("settings", lambda: settings_findings(config, os.environ)),
        ("database", lambda: database_findings(config)),
        ("redis", lambda: redis_findings(config)),
        ("disk", lambda: disk_findings(config, os.environ)),
        ("files", descriptor_findings),
        ("gpu", gpu_findings),
        ("ports", lambda: port_findings(config.data_dir, options.host, options.port, metrics)),
        ("fleet", fleet_findings),
    )


def package_findings() -> Iterator[Finding]:
    # A gateway of its own has no torch.
    is_neuron = installed_version("torch") is not None
    name = REQUIREMENTS if is_neuron else GATEWAY_REQUIREMENTS
    if (REPOSITORY_DIR / name).is_file():
        missing = unmet(pins_of(REPOSITORY_DIR / name))
        how = f"remove {venv_dir() / STAMP}: the next {program()} serve or neuron installs them"
    else:
        name, how = "the wheel", "install the wheel again with pip"
        missing = unmet(metadata.requires("helexa") or [], "neuron" if is_neuron else "")
    if missing:
        yield warning("packages", f"not as {name} pins them: {', '.join(missing)}", how)
    else:
        yield ok("packages", f"as {name} pins them")


OURS = {name for name in NAMES if name.startswith(PREFIX)}
SET_BY_THE_START = {setting.name for setting in SETTINGS if setting.is_internal} | {
    LISTEN_HOST.name
}
"""``manage.py`` and the doctor set these themselves; the operator has not."""


def settings_findings(config: Config, environment: Mapping[str, str]) -> Iterator[Finding]:
    findings = [*unknown_variables(environment), *_risky_settings(config)]
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


def _risky_settings(config: Config) -> Iterator[Finding]:
    host, key = config.listen_host, config.data_dir / SECRET_KEY_FILE
    if config.allow_anonymous and host is not None and not is_loopback(host):
        yield warning(
            "settings",
            f"anybody who reaches {host} may use every model without a key",
            f"set HELEXA_ALLOW_ANONYMOUS=0 and make keys: {program()} keys create ACCOUNT",
        )
    if (config.public_url or "").startswith("https://") and not config.trusted_proxies:
        yield warning(
            "settings",
            f"{config.public_url} is a proxy's, and no proxy is trusted: which requests came by "
            "HTTPS is not known, so browsers get no Strict-Transport-Security",
            f"set {TRUSTED_PROXIES.name} to the proxy's address",
        )
    if config.secret_key is None and key.exists() and key.stat().st_mode & 0o077:
        yield failed(
            "settings",
            f"others may read {key}, which signs logins and API keys",
            f"chmod 600 {key}; if somebody may have read it, remove it and make new API keys",
        )
    if config.debug:
        yield warning(
            "settings",
            "HELEXA_DEBUG is on: pages of errors show settings to whoever sees them",
            "unset HELEXA_DEBUG",
        )
