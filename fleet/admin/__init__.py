"""The operator's console: one file per noun. Lists and forms; every write calls a service."""

from fleet.admin.catalogue import AliasAdmin, CatalogueModelAdmin
from fleet.admin.download import DownloadAdmin
from fleet.admin.invitation import FleetPolicyAdmin, InvitationAdmin
from fleet.admin.load_job import LoadJobAdmin
from fleet.admin.neuron import DeviceAdmin, NeuronAdmin
from fleet.admin.replica import ReplicaAdmin
from fleet.admin.upstream import UpstreamAdmin

__all__ = [
    "AliasAdmin",
    "CatalogueModelAdmin",
    "DeviceAdmin",
    "DownloadAdmin",
    "FleetPolicyAdmin",
    "InvitationAdmin",
    "LoadJobAdmin",
    "NeuronAdmin",
    "ReplicaAdmin",
    "UpstreamAdmin",
]
