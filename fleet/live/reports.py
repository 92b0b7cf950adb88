"""Parses one neuron's report, or refuses it with the reason. Pure.

A neuron may be of another version, broken or hostile. Its report affects itself alone: a refused
report counts as none, and its neuron's row has the reason.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec

from fleet.live.load_orders import LoadOrders
from fleet.live.neuron_reads import NeuronValueError
from fleet.live.report_bounds import printable, value_problem
from inference.logs.throttled import ThrottledLog
from inference.protocol.heartbeat import NeuronHeartbeat, decode_heartbeat

logger = logging.getLogger(__name__)

MAX_REPORT_BYTES = 1024 * 1024
MAX_NAME_LENGTH = 100
MAX_DEVICES = 64
MAX_REPLICAS = 256
MAX_REMEMBERED = 2000
MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class Report:
    """``heartbeat`` is ``None`` where it is refused; ``problem`` is the reason."""

    name: str
    heartbeat: NeuronHeartbeat | None
    problem: str = ""


def read_report(
    name: str, payload: bytes | NeuronValueError, orders: LoadOrders | None = None
) -> Report:
    """The report of the neuron of that name, without replicas that lack a valid order. A refusal is
    logged once."""
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
    _last_read[name] = (payload, report)
    return report


def log_refusal(name: str, why: str) -> str:
    """Log the refusal once, and return it as the neuron's problem."""
    problem = f"its report is refused: {why[:300]}"
    _log.log(name, f"neuron {name[:MAX_NAME_LENGTH]}: {problem}")
    return problem


def _ordered(heartbeat: NeuronHeartbeat, orders: LoadOrders) -> NeuronHeartbeat:
    """The heartbeat with its ordered replicas alone, and a problem that names the others."""
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
"""Reports come each second, or five times that, and a hostile neuron's differ each time."""
_last_read: dict[str, tuple[bytes | NeuronValueError, Report]] = {}
"""Gateways look several times between two reports."""
