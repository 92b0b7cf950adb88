"""An overview of the fleet for the dashboard, the status command and the REST API.

database, Redis ─▶ fleet_overview() ─▶ FleetOverview ▷ lines, and findings by urgency

Live where Redis answers, else the last recorded state. A fixed number of queries for any size of
fleet.
"""

from fleet.overview.attention import attention
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
    "ReplicaLine",
    "attention",
    "fleet_overview",
]
