"""The fleet's tables. Rows only: every write goes through ``fleet.services``."""

from fleet.models.catalogue import Alias, CatalogueModel, Upstream
from fleet.models.job import Download, LoadJob, LoadMeasurement
from fleet.models.neuron import (
    ControlTerm,
    Device,
    FleetPolicy,
    Invitation,
    Neuron,
    NeuronWish,
    Replica,
)

__all__ = [
    "Alias",
    "CatalogueModel",
    "ControlTerm",
    "Device",
    "Download",
    "FleetPolicy",
    "Invitation",
    "LoadJob",
    "LoadMeasurement",
    "Neuron",
    "NeuronWish",
    "Replica",
    "Upstream",
]
