"""Pipeloom: a pipeline schedule for every training step.

    client = pipeloom.Client("127.0.0.1:50551")
    job = client.open_job("dip-vlm-s", samples)
    client.submit_batch(job.job_id, 0, samples)
    plan = client.plan(job.job_id, 0)
    print(plan.schedule, plan.predicted_step_time_ns)

`pipeloom.torch` carries plans out with torch.distributed.
"""
from pipeloom.client import (Client, Job, MetadataPrefetcher, PlannerError,
                             Sample)
from pipeloom.plan import (Edge, Instruction, Microbatch, Plan, SubMicrobatch,
                           Task, loss_weights, read_plan)
from pipeloom.provider import PlanProvider
from pipeloom.static_schedule import Stage, static_plan

__version__ = "0.1.0"
__all__ = [
    "Client", "Edge", "Instruction", "Job", "MetadataPrefetcher", "Microbatch",
    "Plan", "PlanProvider", "PlannerError", "Sample", "Stage",
    "SubMicrobatch", "Task", "loss_weights", "read_plan", "static_plan",
]
