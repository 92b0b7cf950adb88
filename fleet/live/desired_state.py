"""The control's publications: each neuron's desired state with its host's facts, and time slices.

    rows in the database ─▶ hash helexa:neurons:wishes ─▶ every gateway's FleetSnapshot
                            neuron's name ─▶ DesiredState, POLICY_FIELD ─▶ AdmissionPolicy
    control decides ─▶ helexa:turns ─▶ every gateway's snapshot ─▶ placement keeps the room

The rows are the truth: the control rewrites the hash with every whole tick, so a Redis that
restarted empty has it some seconds later. A time slice is given when replicas in use begin to
drain, on devices with requests for more models than fit; its memory stays reserved until the
waiting model is loaded there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import msgspec

logger = logging.getLogger(__name__)

POLICY_FIELD = ""
"""No neuron's name is empty."""


class Admission(StrEnum):
    ADMITTED = "admitted"
    WAITING = "waiting"
    REFUSED = "refused"


class AdmissionPolicy(StrEnum):
    AUTOMATIC = "automatic"
    CLICK = "click"

    @property
    def first_admission(self) -> Admission:
        return Admission.ADMITTED if self is AdmissionPolicy.AUTOMATIC else Admission.WAITING


class KnownDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: Literal["cpu", "cuda"]
    total_memory_bytes: int
    name: str = ""


class KnownHost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Durations are as of the last publication, so clocks need not agree."""

    devices: tuple[KnownDevice, ...] = ()
    away_s: float | None = None
    """``None``: it reports."""
    draining_s: float | None = None
    """``None``: it is not drained."""


class DesiredState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    drain: bool = False
    admission: Admission = Admission.ADMITTED
    host: KnownHost | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredStates:
    by_neuron: Mapping[str, DesiredState] = field(default_factory=dict)
    policy: AdmissionPolicy = AdmissionPolicy.AUTOMATIC

    def of(self, neuron: str) -> DesiredState:
        return self.by_neuron.get(neuron) or DesiredState(admission=self.policy.first_admission)


NO_DESIRED_STATES = DesiredStates()


def encode_desired_states(desired_states: DesiredStates) -> dict[Any, Any]:
    policy = {POLICY_FIELD: desired_states.policy.value.encode()}
    return policy | {
        name: msgspec.json.encode(desired) for name, desired in desired_states.by_neuron.items()
    }


def decode_desired_states(fields: Mapping[bytes | str, bytes | str]) -> DesiredStates | None:
    """``None``: none are published, or Redis has lost them."""
    texts = {_text(name): value for name, value in fields.items()}
    policy = texts.pop(POLICY_FIELD, None)
    if policy is None:
        return None
    desired_states = {}
    for name, value in texts.items():
        try:
            desired_states[name] = msgspec.json.decode(value, type=DesiredState)
        except msgspec.DecodeError as error:
            logger.warning("the desired state of %s is not understood: %s", name, error)
    try:
        return DesiredStates(by_neuron=desired_states, policy=AdmissionPolicy(_text(policy)))
    except ValueError:
        logger.warning("the admission policy %r is not understood", _text(policy))
        return DesiredStates(by_neuron=desired_states)


def _text(word: bytes | str) -> str:
    return word.decode(errors="replace") if isinstance(word, bytes) else word


class TimeSlice(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    neuron: str
    devices: tuple[str, ...]
    device_bytes: int
    """Reserved on each of them, where ``stage_bytes`` has no other size."""
    stage_bytes: tuple[int, ...] = ()
    """In the devices' order, where the model is divided over them."""
    evicted: tuple[str, ...] = msgspec.field(default=(), name="victims")
    age_s: float = 0.0

    def promised_on(self, device: str) -> int:
        if not self.stage_bytes:
            return self.device_bytes
        return self.stage_bytes[self.devices.index(device)]


encode_time_slices = msgspec.json.Encoder().encode
decode_time_slices = msgspec.json.Decoder(tuple[TimeSlice, ...]).decode
