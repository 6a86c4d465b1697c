"""The planner in this process: the same plans as the `pipeloom` command and the
service, as Python objects."""
from pipeloom.planner.commands import PlanningWarning
from pipeloom.planner.inputs import Cluster, Job, Model
from pipeloom.planner.planning import (compare, emulate, plan, search_layout,
                                       strategies, whatif)
from pipeloom.planner.results import (Comparison, Emulation, JobPlan,
                                      LayoutSearch, PlannedStep, StepPlan,
                                      WhatIf)

__all__ = [
    "Cluster", "Comparison", "Emulation", "Job", "JobPlan", "LayoutSearch",
    "Model", "PlannedStep", "PlanningWarning", "StepPlan", "WhatIf", "compare",
    "emulate", "plan", "search_layout", "strategies", "whatif",
]
