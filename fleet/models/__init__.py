"""What the database holds of the fleet. Rows only: every write goes through ``fleet.services``."""

from fleet.models.catalogue import Alias, CatalogueModel
from fleet.models.control import ControlTerm
from fleet.models.download import Download
from fleet.models.invitation import Invitation
from fleet.models.load_job import LoadJob
from fleet.models.load_measurement import LoadMeasurement
from fleet.models.neuron import Device, Neuron
from fleet.models.replica import Replica
from fleet.models.standing import FleetPolicy, NeuronWish
from fleet.models.upstream import Upstream

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
