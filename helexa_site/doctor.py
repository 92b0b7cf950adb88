"""``manage.py doctor``: checks this host's installation, and changes nothing. A host that only runs
a neuron has no database, and a gateway no GPU: parts missing by design are no fault."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any

from helexa_site.addresses import is_loopback, reachable_host, try_to_listen
from helexa_site.bootstrap.environment import STAMP, installed_version, pins_of, unmet, venv_dir
from helexa_site.config import SECRET_KEY_FILE, Config, database_settings, read_config
from helexa_site.data_directory import INSTANCE_HEADER, instance_id
from helexa_site.program import REPOSITORY_DIR, Installation, installation, program
from inference.environment import Role, environment_for
from inference.settings.gateway import LISTEN_HOST, TRUSTED_PROXIES, MetricsListen
from inference.settings.neuron import HF_CACHE, HF_HOME, HF_HUB_CACHE
from inference.settings.setting import SettingError
from inference.settings.storage import DATA_DIR, FILES_DIR
from inference.settings.table import NAMES, PREFIX, SETTINGS, refusals, unknown_names

SET_BY_THE_START = {setting.name for setting in SETTINGS if setting.is_internal} | {
    LISTEN_HOST.name
}
OURS = {name for name in NAMES if name.startswith(PREFIX)} - SET_BY_THE_START
GIB = 1024**3
LEAST_BYTES = 1 * GIB
LITTLE_BYTES = 10 * GIB
"""The doctor warns below this: less than a model of 14 billion parameters in 4 bits."""
HOST_CHECK = (sys.executable, "-m", "inference.neuron.discovery")
HOST_CHECK_TIMEOUT_S = 180.0
"""The check imports torch where there are cards, and waits for a driver that may hang."""
ANSWER_TIMEOUT_S = 5.0
SIGNS = {"/health": b'"status"', "/metrics": b"helexa_"}


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """The thing examined works now, and may not later."""
    FAILED = "failed"


MARKS = {Level.OK: "ok  ", Level.WARNING: "warn", Level.FAILED: "FAIL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str = ""
    level: Level
    text: str
    mend: str = ""


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
    from helexa_site import doctor_services  # with models

    metrics = config.metrics.at(host)
    yield from run_checks(
        {
            "packages": package_findings,
            "settings": lambda: settings_findings(config, os.environ),
            "database": lambda: doctor_services.database_findings(config),
            "redis": lambda: doctor_services.redis_findings(config),
            "disk": lambda: disk_findings(config, os.environ),
            "files": doctor_services.descriptor_findings,
            "gpu": gpu_findings,
            "ports": lambda: port_findings(config.data_dir, host, port, metrics),
            "fleet": doctor_services.fleet_findings,
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


def disk_findings(
    config: Config,
    environment: Mapping[str, str],
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> Iterator[Finding]:
    folders = [("the data directory", config.data_dir, DATA_DIR.name)]
    if config.files_dir is not None:
        folders.append(("the directory of clients' files", config.files_dir, FILES_DIR.name))
    caches = [one for one in (HF_CACHE, HF_HUB_CACHE, HF_HOME) if one.read(environment)]
    for cache in caches[:1]:
        folder = Path(str(cache.read(environment)))
        folders.append(("the cache of Hugging Face", folder, cache.name))
    for what, folder, setting in folders:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        try:
            # Only making a directory shows it: root may write where none can be made.
            Path(tempfile.mkdtemp(prefix=".helexa-doctor-", dir=there)).rmdir()
        except OSError as error:
            verb = "written" if there == folder and there.is_dir() else "made"
            yield failed(
                f"{what} {folder} cannot be {verb}: {error.strerror}",
                f"let this user write to {there}, or set {setting} to another directory",
            )
            continue
        free = free_bytes(there)
        text = f"{what} {folder} has {free / GIB:.1f} GiB free"
        mend = "delete cached models on the neuron's page, or give it more room"
        if free < LEAST_BYTES:
            yield failed(text, mend)
        else:
            yield warning(text, mend) if free < LITTLE_BYTES else ok(text)


def gpu_findings(command: tuple[str, ...] = HOST_CHECK) -> Iterator[Finding]:
    if importlib.util.find_spec("pynvml") is None:
        yield ok("this environment is a gateway's: it runs no models")
        return
    try:
        done = subprocess.run(
            command,
            cwd=REPOSITORY_DIR,
            env=environment_for(Role.OTHER, os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HOST_CHECK_TIMEOUT_S,
        )
        facts = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        yield failed("the NVIDIA driver does not answer", "reboot this host")
    except (OSError, ValueError) as error:
        yield warning(f"this host cannot be looked at: {error}", "see the lines above")
    else:
        yield from gpu_fact_findings(facts)


def gpu_fact_findings(facts: dict[str, Any]) -> Iterator[Finding]:
    """``facts``: the output of ``inference.neuron.discovery``."""
    for problem in facts["problems"]:
        text, _, mend = problem.partition(": ")
        yield failed(text, mend or "see the troubleshooting page")
    if problem := facts.get("triton_problem"):
        text, _, mend = problem.partition(": ")
        yield warning(text, mend)
    if facts["torch"] is None:
        mend = f"{program()} neuron"
        if installation() is Installation.WHEEL:
            mend = "install helexa's wheel with its extra: pip install 'helexa-….whl[neuron]'"
        yield warning("torch is not installed: no model can be loaded here", mend)
    elif _is_older(facts["driver_cuda"], facts["torch_cuda"]):
        yield failed(
            f"the driver {facts['driver']} runs CUDA {facts['driver_cuda']}, and torch "
            f"{facts['torch']} is built for {facts['torch_cuda']}",
            f"install a driver for CUDA {facts['torch_cuda']} or newer",
        )
    elif not facts["problems"]:
        if facts["cards"]:
            yield ok(f"{', '.join(facts['cards'])}: driver {facts['driver']} and torch agree")
        else:
            yield ok("no NVIDIA GPU: models run on the CPU")


def _is_older(driver_cuda: str | None, torch_cuda: str | None) -> bool:
    """A driver runs code built for its own major version of CUDA and for older ones."""
    majors = [int(cuda.partition(".")[0]) for cuda in (driver_cuda, torch_cuda) if cuda]
    return len(majors) == 2 and majors[0] < majors[1]


def port_findings(
    data_dir: Path, host: str, port: int, metrics: MetricsListen | None
) -> Iterator[Finding]:
    instance = instance_id(data_dir)
    yield _port(instance, host, port, "/health", "a gateway")
    if metrics is not None:
        yield _port(instance, metrics.host, metrics.port, "/metrics", "a gateway's metrics")


def _port(instance: str | None, host: str, port: int, path: str, what: str) -> Finding:
    if (error := try_to_listen(host, port)) is None:
        return ok(f"{port} on {host} is free")
    holder = _instance_at(reachable_host(host), port, path)
    if holder is None:
        return failed(
            f"{port} on {host} cannot be listened on: {error.strerror or error}",
            f"see who has it (ss -ltnp sport = :{port}), or choose another port",
        )
    if holder != (instance or ""):
        return failed(
            f"{port} on {host} is {what} of another helexa, with another data directory",
            "stop that one, choose another port, or set HELEXA_DATA_DIR to its directory",
        )
    return ok(f"{what} answers on {port} of {host}")


def _instance_at(host: str, port: int, path: str) -> str | None:
    """``None``: another program has the port. Empty: a helexa that sends no instance."""
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        is_helexa = SIGNS[path] in answer.read(1 << 20)
        return answer.getheader(INSTANCE_HEADER, "") if is_helexa else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
