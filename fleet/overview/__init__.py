"""The whole fleet at one look: for the dashboard, the status command and the REST answer.

    database, Redis ─▶ fleet_overview() ─▶ FleetOverview ▷ lines, and what needs attention first

Live where Redis answers, else as it was last recorded. A fixed number of queries, whatever the size
of the fleet.
"""

from fleet.overview.attention import attention
from fleet.overview.jobs import outdated_models
from fleet.overview.lines import (
    Attention,
    DeviceLine,
    DownloadLine,
    FleetOverview,
    HeldMemory,
    JobLine,
    Level,
    ModelLine,
    NeuronLine,
    OutdatedLine,
    ReplicaLine,
)
from fleet.overview.selector import fleet_overview

__all__ = [
    "Attention",
    "DeviceLine",
    "DownloadLine",
    "FleetOverview",
    "HeldMemory",
    "JobLine",
    "Level",
    "ModelLine",
    "NeuronLine",
    "OutdatedLine",
    "ReplicaLine",
    "attention",
    "fleet_overview",
    "outdated_models",
]
