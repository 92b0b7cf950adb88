"""The fleet's tables. Rows only: every write goes through ``fleet.services``."""

from fleet.models.catalogue import Alias as Alias
from fleet.models.catalogue import CatalogueModel as CatalogueModel
from fleet.models.catalogue import Upstream as Upstream
from fleet.models.job import Download as Download
from fleet.models.job import LoadJob as LoadJob
from fleet.models.job import LoadMeasurement as LoadMeasurement
from fleet.models.neuron import ControlTerm as ControlTerm
from fleet.models.neuron import Device as Device
from fleet.models.neuron import FleetPolicy as FleetPolicy
from fleet.models.neuron import Invitation as Invitation
from fleet.models.neuron import Neuron as Neuron
from fleet.models.neuron import NeuronWish as NeuronWish
from fleet.models.neuron import Replica as Replica
