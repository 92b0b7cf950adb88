"""All checks, one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata

from helexa_site.bootstrap.arguments import DoctorOptions
from helexa_site.bootstrap.environment import STAMP, installed_version, pins_of, unmet, venv_dir
from helexa_site.config import Config, read_config
from helexa_site.databases import database_settings
from helexa_site.doctor.findings import Finding, failed, ok, warning
from helexa_site.doctor.settings_check import unknown_variables
from helexa_site.program import REPOSITORY_DIR, program
from inference.settings.setting import SettingError
from inference.settings.table import refusals

Check = tuple[str, Callable[[], Iterator[Finding]]]
REQUIREMENTS = "requirements.txt"
GATEWAY_REQUIREMENTS = "requirements-gateway.txt"


def examine(options: DoctorOptions) -> Iterator[Finding]:
    """Each finding as soon as it is there."""
    # Without settings nothing else can be examined.
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
    from helexa_site.doctor.settings_check import settings_findings

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
