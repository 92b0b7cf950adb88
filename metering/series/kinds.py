"""What series are of."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

FLEET_NAME = ""


class Kind(StrEnum):
    FLEET = "fleet"
    MODEL = "model"
    NEURON = "neuron"
    ACCOUNT = "account"
    DEVICE = "device"


class SeriesKey(NamedTuple):
    """One row: ``at`` is the Unix time at which its step begins. A device's name is
    ``NEURON/cuda:0``."""

    step_s: int
    at_unix_s: int
    kind: Kind
    name: str
