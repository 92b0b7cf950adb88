"""Places models and requests, and chooses evictions. Pure: snapshots in, decisions out.

place        one request: Route | Load | Wait | Reject
route        the same, for a model that is loaded
place_on     one load on one neuron: its devices, and what leaves for it
reconcile    what the control does in a tick (``fleet.placement.reconcile``)
"""

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
