"""Plans a model as stages: layer ranges on the devices of one or several hosts. Pure.

ModelCosts, StageDevice* ──plan_stages──▶ StagePlan ▷ Stage*  with blocks and tokens/s
                                          StageRefusal        the missing bytes and where
"""

from fleet.placement.stages.devices import StageDevice
from fleet.placement.stages.planning import Spread, StagePlan, StageRefusal, plan_stages

__all__ = ["Spread", "StageDevice", "StagePlan", "StageRefusal", "plan_stages"]
