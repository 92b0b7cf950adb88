"""Places models and requests, and chooses evictions. Pure: snapshots in, decisions out."""

from fleet.placement.capacity import Catalogue as Catalogue
from fleet.placement.decisions import Decision as Decision
from fleet.placement.decisions import Load as Load
from fleet.placement.decisions import Reject as Reject
from fleet.placement.decisions import Route as Route
from fleet.placement.decisions import Wait as Wait
from fleet.placement.place import place as place
from fleet.placement.place import place_on as place_on
from fleet.placement.targets import RoutingHint as RoutingHint
from fleet.placement.targets import route as route
