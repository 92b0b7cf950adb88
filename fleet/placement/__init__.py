"""Places models and requests, and chooses evictions. Pure: snapshots in, decisions out."""

from fleet.placement.capacity import Catalogue
from fleet.placement.decisions import Decision, Load, Reject, Route, Wait
from fleet.placement.place import place, place_on
from fleet.placement.targets import RoutingHint, route

__all__ = [
    "Catalogue",
    "Decision",
    "Load",
    "Reject",
    "Route",
    "RoutingHint",
    "Wait",
    "place",
    "place_on",
    "route",
]
