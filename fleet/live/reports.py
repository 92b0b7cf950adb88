"""Parses one neuron's report, or refuses it with the reason. A neuron may be of another version,
broken or hostile: its report affects itself alone."""

from __future__ import annotations

import hmac
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import msgspec
from django.conf import settings

from inference.logs import ThrottledLog, one_line
from inference.protocol.heartbeat import LoadState, NeuronHeartbeat, decode_heartbeat

PURPOSE = b"helexa load order"
NUM_HEX = 32


class NeuronValueError(Exception):
    """A neuron's value in Redis is over the limit, or of another type."""


class LoadOrders:
    """Signs orders of loads: requests are routed only to replicas with a valid one. Otherwise a
    false report would attract a model's requests, prompts included, and block real loads. An order
    is for one model on one neuron, and its load spec contains it. Only gateways and the control can
    make one: they share ``secret_key``, Django's."""

    def __init__(self, secret_key: str) -> None:
        self._secret = hmac.digest(secret_key.encode(), PURPOSE, "sha256")

    def order(self, *, neuron: str, model: str) -> str:
        """Hex digits. A neuron's name and a model's hold no line feed."""
        return hmac.digest(self._secret, f"{neuron}\n{model}".encode(), "sha256").hex()[:NUM_HEX]

    def ordered(self, heartbeat: NeuronHeartbeat) -> tuple[NeuronHeartbeat, list[str]]:
        """Returns also the models of the replicas and held stages that were left out."""

        others: list[str] = []

        def is_ordered(one: LoadState) -> bool:
            expected = self.order(neuron=heartbeat.name, model=one.model)
            is_valid = hmac.compare_digest(one.order.encode(), expected.encode())
            if not is_valid:
                others.append(one.model)
            return is_valid

        replicas = [state for state in heartbeat.replicas if is_ordered(state)]
        stages = [stage for stage in heartbeat.stages if is_ordered(stage)]
        if not others:
            return heartbeat, []
        return msgspec.structs.replace(heartbeat, replicas=replicas, stages=stages), others


@cache
def load_orders() -> LoadOrders:
    return LoadOrders(settings.SECRET_KEY)


logger = logging.getLogger(__name__)

AnyReport = TypeVar("AnyReport", bound=msgspec.Struct)
Value = str | int | float

MAX_TEXT_LENGTH = 4096
TEXT_LENGTHS = {
    "name": 255,
    "epoch": 64,
    "version": 64,
    "hostname": 255,
    "os": 255,
    "compute_capability": 16,
    "driver": 64,
    "model": 100,
    "job_id": 64,
    "code": 64,
}
MAX_INTEGER = 2**63 - 1
MAX_CONTEXT_TOKENS = 2**24
"""Longer than any context. Bounds a neuron's bill for a request without a cap."""
INTEGERS = {
    "index": 2**15 - 1,
    "context_tokens": MAX_CONTEXT_TOKENS,
    "max_output_tokens": MAX_CONTEXT_TOKENS,
    "num_cores": 2**31 - 1,
    "num_restarts": 2**31 - 1,
    "in_flight": 2**31 - 1,
    "queue_depth": 2**31 - 1,
    "kv_blocks_used": 2**31 - 1,
    "kv_blocks_total": 2**31 - 1,
}
NEVER_NEGATIVE = INTEGERS.keys() | {
    "total_memory_bytes",
    "free_memory_bytes",
    "installed_memory_bytes",
    "num_drafted_tokens",
    "num_accepted_drafts",
    "done",
    "total",
}
DIVISORS = {"patch_px", "merge", "max_pixels"}
"""Gateways divide by them."""
MAX_UNIX_S = 2.0**36
"""The year 4147, which every database can store."""
MAX_REPORT_BYTES = 1024 * 1024
MAX_NAME_LENGTH = 100
MAX_DEVICES = 64
MAX_REPLICAS = 256
MAX_REMEMBERED = 2000
MAX_NAMED = 3


def value_problem(report: msgspec.Struct) -> str | None:
    for name, value in _values(report):
        if problem := _problem(name, value):
            return f"{name}: {problem}"
    return None


def printable(report: AnyReport) -> AnyReport:
    """The report with its control and invisible characters escaped, and spaces for line ends: its
    texts reach terminals, where raw ones move the cursor, forge lines or reorder text."""
    if all(text.isprintable() for _, text in _values(report) if isinstance(text, str)):
        return report
    return msgspec.convert(_printable(msgspec.to_builtins(report)), type(report))


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return one_line(value.replace("\n", " "))
    if isinstance(value, dict):
        return {_printable(key): _printable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(one) for one in value]
    return value


def _values(value: Any, name: str = "") -> Iterator[tuple[str, Value]]:
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _values(getattr(value, field), field)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield f"a name in {name}", key
            yield from _values(one, name)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _values(one, name)
    elif isinstance(value, str | int | float):
        yield name, value


def _problem(name: str, value: Value) -> str | None:
    if isinstance(value, str):
        bound = TEXT_LENGTHS.get(name, MAX_TEXT_LENGTH)
        if len(value) > bound:
            return f"{len(value)} letters are over the bound of {bound}"
        return "a NUL is in it" if "\0" in value else None
    if isinstance(value, float):
        if not math.isfinite(value):
            return f"{value} is no number"
        is_moment = name.endswith("_unix_s")
        return f"{value} is no time" if is_moment and not 0 <= value <= MAX_UNIX_S else None
    bound = INTEGERS.get(name, MAX_INTEGER)
    least = 1 if name in DIVISORS else 0 if name in NEVER_NEGATIVE else -MAX_INTEGER
    if not least <= value <= bound:
        return f"{value:.3e} is out of bounds" if abs(value) < 2**1000 else "it is out of bounds"
    return None


@dataclass(frozen=True, slots=True)
class Report:
    name: str
    heartbeat: NeuronHeartbeat | None
    problem: str = ""


def read_report(
    name: str, payload: bytes | NeuronValueError, orders: LoadOrders | None = None
) -> Report:
    """Leaves out replicas that lack a valid order. A refusal is logged once."""
    last = _last_read.get(name)
    if last is not None and last[0] == payload:
        return last[1]
    try:
        if isinstance(payload, NeuronValueError):
            raise ValueError(str(payload))
        heartbeat = _understood(name, payload)
        report = Report(name, heartbeat if orders is None else _ordered(heartbeat, orders))
        if report.heartbeat is heartbeat:
            _log.forget(name)
    except ValueError as error:
        report = Report(name, None, log_refusal(name, str(error)))
    while len(_last_read) >= MAX_REMEMBERED:
        _last_read.pop(next(iter(_last_read)), None)
    _last_read[name] = payload, report
    return report


def log_refusal(name: str, why: str) -> str:
    problem = f"its report is refused: {why[:300]}"
    _log.log(name, f"neuron {name[:MAX_NAME_LENGTH]}: {problem}")
    return problem


def _ordered(heartbeat: NeuronHeartbeat, orders: LoadOrders) -> NeuronHeartbeat:
    ordered, others = orders.ordered(heartbeat)
    if not others:
        return heartbeat
    named = ", ".join(others[:MAX_NAMED]) + (" and more" if len(others) > MAX_NAMED else "")
    problem = f"it reports {named}, which nobody ordered there: no requests go to it"
    _log.log(heartbeat.name, f"neuron {heartbeat.name}: {problem}")
    host = msgspec.structs.replace(ordered.host, problems=[*ordered.host.problems, problem])
    return msgspec.structs.replace(ordered, host=host)


def _understood(name: str, payload: bytes) -> NeuronHeartbeat:
    if len(payload) > MAX_REPORT_BYTES:
        raise ValueError(f"{len(payload)} bytes are over the bound of {MAX_REPORT_BYTES}")
    if len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"a name of {len(name)} letters is over the bound of {MAX_NAME_LENGTH}")
    heartbeat = decode_heartbeat(payload)
    if heartbeat.name != name:
        raise ValueError(f"it calls itself {heartbeat.name[:MAX_NAME_LENGTH]!r}")
    for noun, found, bound in (
        ("devices", heartbeat.devices, MAX_DEVICES),
        ("replicas", heartbeat.replicas, MAX_REPLICAS),
    ):
        if len(found) > bound:
            raise ValueError(f"{len(found)} {noun} are over the bound of {bound}")
    if len({replica.model for replica in heartbeat.replicas}) < len(heartbeat.replicas):
        raise ValueError("it names one model twice")
    if len({(device.kind, device.index) for device in heartbeat.devices}) < len(heartbeat.devices):
        raise ValueError("it names one device twice")
    if problem := value_problem(heartbeat):
        raise ValueError(problem)
    return printable(heartbeat)


_log = ThrottledLog(logger, logging.WARNING, interval_s=600.0, max_messages=5)
"""Reports come up to five times a second, and a hostile neuron's differ each time."""
_last_read: dict[str, tuple[bytes | NeuronValueError, Report]] = {}
"""Gateways read several times between two reports."""
