"""A device of another host, which computes a part of a model that is served here."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RemoteDevice:
    neuron: str
    device: torch.device
    """The device's name on that host."""

    @property
    def type(self) -> str:
        return self.device.type

    def __str__(self) -> str:
        return f"{self.device} of {self.neuron}"


AnyDevice = torch.device | RemoteDevice
"""``type`` and the name in words are those of both."""


def name_of(device: AnyDevice) -> str:
    """What its own host calls it."""
    return str(device.device if isinstance(device, RemoteDevice) else device)
