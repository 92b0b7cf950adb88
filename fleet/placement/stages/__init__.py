"""Plans a model as stages: layer ranges on the devices of one or several hosts. Pure.

    ModelCosts, StageDevice* ──plan_stages──▶ StagePlan ▷ Stage*  with blocks and tokens/s
                                              StageRefusal        the missing bytes and where

Placement divides models that no device could hold over one host, or over several
(``devices.staged``).
"""

from fleet.placement.stages.devices import StageDevice
from fleet.placement.stages.planning import Spread, plan_stages
from fleet.placement.stages.plans import Stage, StagePlan, StageRefusal

__all__ = [
    "Spread",
    "Stage",
    "StageDevice",
    "StagePlan",
    "StageRefusal",
    "plan_stages",
]
