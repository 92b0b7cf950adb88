"""This host: room on its disks, file descriptors, GPUs and ports."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import redis

from fleet.live.reading import read_refusals, redis_client
from helexa_site.bootstrap.arguments import reachable_host
from helexa_site.bootstrap.sharing import try_to_listen
from helexa_site.config import Config
from helexa_site.doctor.examine import Finding, failed, ok, warning
from helexa_site.instance import INSTANCE_HEADER, instance_id
from helexa_site.program import REPOSITORY_DIR, Installation, installation, program
from inference.descriptors import DescriptorMarks, raise_descriptor_limit
from inference.environment import Role, environment_for
from inference.protocol.refusals import OVERLOADED, Refused
from inference.settings.gateway import MetricsListen
from inference.settings.neuron import HF_CACHE, HF_HOME, HF_HUB_CACHE
from inference.settings.storage import DATA_DIR, FILES_DIR

GIB = 1024**3
LEAST_BYTES = 1 * GIB
LITTLE_BYTES = 10 * GIB
"""The doctor warns below this: less than a model of 14 billion parameters in 4 bits."""
FEW_DESCRIPTORS = 4096
REFUSALS_HOURS = 2
HOW_TO_RAISE = "raise the limit: LimitNOFILE= of the unit, nofile in limits.conf, or ulimit -Hn"
HOST_CHECK = (sys.executable, "-m", "inference.neuron.host.host_check")
HOST_CHECK_TIMEOUT_S = 180.0
"""The check imports torch where there are cards, and waits for a driver that may hang."""
ANSWER_TIMEOUT_S = 5.0
SIGNS = {"/health": b'"status"', "/metrics": b"helexa_"}
"""Bytes in the answers of any helexa."""


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


def descriptor_findings() -> Iterator[Finding]:
    try:
        refused = read_refusals(redis_client(), hours=REFUSALS_HOURS)
    except (redis.RedisError, OSError):
        refused = {}  # Redis has a line of its own
    yield from descriptor_limit_findings(raise_descriptor_limit(), refused)


def descriptor_limit_findings(limit: int, refused: Mapping[Refused, int]) -> Iterator[Finding]:
    """``limit``: of a process started from here. Pure."""
    num_clients = DescriptorMarks.of_limit(limit).refuse_from
    text = f"a process may have {limit:,} file descriptors, a gateway's clients {num_clients:,}"
    yield warning(text, HOW_TO_RAISE) if limit < FEW_DESCRIPTORS else ok(text)
    num_refused = sum(number for one, number in refused.items() if one.code == OVERLOADED)
    if num_refused:
        yield warning(
            f"gateways ran out of file descriptors: {num_refused:,} connections were refused since "
            "the last full hour but one",
            f"{HOW_TO_RAISE}, or run another gateway",
        )


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
    """The findings from the output of ``inference.neuron.host.host_check``. Pure."""
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
    """The instance of the helexa that answers there, empty where it sends none; ``None``: another
    program has the port."""
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
