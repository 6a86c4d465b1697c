"""Replicas of a pipeline: the processes that hold the same stages and train
them on other samples."""
import zlib
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import torch
import torch.distributed as dist
from torch import nn

from pipeloom.hf.gradients import words_of
from pipeloom.hf.stages import Layer, StageModule
from pipeloom.plan import Plan
from pipeloom.transport import new_group

MODES = ("step", "pass")


class Grid(NamedTuple):
    """A process's place: `rank` of `pipeline`, the group of the processes of
    one replica, and `replica` of `replicas`, the group of those with the same
    rank."""
    rank: int
    replica: int
    pipeline: Any
    replicas: Any


def grid(ranks: int) -> Grid:
    """Divides all processes into pipelines of so many ranks each, which are
    replicas of each other. Every process must call it, at the same place.
    ValueError: their number is no multiple of `ranks`."""
    size = dist.get_world_size()
    if ranks < 1 or size % ranks:
        raise ValueError(f"{size} processes cannot be divided into pipelines "
                         f"of {ranks} ranks: start a multiple of {ranks}")
    me = dist.get_rank()
    pipelines = [new_group(range(i * ranks, (i + 1) * ranks))
                 for i in range(size // ranks)]
    replicas = [new_group(range(r, size, ranks)) for r in range(ranks)]
    return Grid(me % ranks, me // ranks, pipelines[me // ranks],
                replicas[me % ranks])


class Replicas:
    """The sum of gradients over the replicas, with whole parameters or with
    parameters that fully_shard (FSDP2) has divided among them.

    `shard` is "" (whole), "step": parameters are gathered when a step begins,
    and stay so until its end; or "pass": they are gathered for each forward and
    backward of a layer, if all replicas run the same passes in the same order
    in this step and nothing is offloaded, else for the step. Gradients are
    summed once, at the end of the step."""

    def __init__(self, group: Any, shard: str, pipeline: Any,
                 device: torch.device) -> None:
        self.group = group.get_group() if hasattr(group, "get_group") else group
        self.size = dist.get_world_size(self.group)
        self.index = dist.get_rank(self.group)
        self.shard = shard
        # Whether parameters are gathered by pass in this step.
        self.by_pass = False
        self._pipeline = pipeline
        self._device = device
        self._layers: List[Layer] = []

    # -- Before the first step -------------------------------------------------

    def check_equal(self, named: Mapping[str, nn.Parameter], rank: int) -> None:
        """Raises ValueError on all replicas alike if their parameters differ,
        in name, shape or value."""
        mine = {name: (tuple(p.shape), str(p.dtype), p.requires_grad)
                for name, p in named.items()}
        every: List[Any] = [None] * self.size
        dist.all_gather_object(every, (rank, mine), group=self.group)
        for other in every[1:]:
            if other != every[0]:
                raise ValueError(
                    "the replicas do not hold the same parameters: `replicas` "
                    "must be the processes with the same rank of the pipeline, "
                    f"of one partition and model (ranks {every[0][0]} and "
                    f"{other[0]})")
        if not named:
            return
        # Sums of integers do not depend on their order.
        words = torch.stack([words_of(p).to(self._device)
                             for p in named.values()])
        ends = torch.stack([words, -words])
        dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=self.group)
        different = (ends[0] != -ends[1]).nonzero().flatten().tolist()
        if different:
            raise ValueError(
                f"{list(named)[different[0]]} differs between replicas: give "
                "all of them the same weights (the same seed, if they are "
                "random)")

    def divide(self, stages: Mapping[int, StageModule]) -> None:
        """Divides the parameters among the replicas, layer by layer.
        ValueError: this torch cannot."""
        try:
            from torch.distributed.device_mesh import DeviceMesh
            from torch.distributed.fsdp import FSDPModule, fully_shard
        except ImportError:
            FSDPModule = None  # type: ignore[assignment,misc]
        # Later than fully_shard itself.
        if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
            raise ValueError(f"shard= needs torch 2.9 or later; this is "
                             f"{torch.__version__}")
        mesh = DeviceMesh.from_group(self.group, self._device.type)
        for stage in stages.values():
            for layer in stage:
                if next(layer.parameters(), None) is None:
                    continue
                fully_shard(layer, mesh=mesh, reshard_after_forward=True)
                layer.set_gradient_divide_factor(1.0)
                layer.set_force_sum_reduction_for_comms(True)
                layer.divided()
                self._layers.append(layer)

    # -- A step ----------------------------------------------------------------

    def count(self, terms: int, error: Optional[Exception]) -> int:
        """Returns the sum of `terms` over the replicas. Raises on all of them
        if one has an error."""
        words = torch.tensor([terms, int(error is not None)],
                             dtype=torch.int64, device=self._device)
        dist.all_reduce(words, group=self.group)
        if error is not None:
            raise error
        if int(words[1]):
            raise RuntimeError("another replica cannot run this step: its "
                               "processes say why")
        return int(words[0])

    def begin(self, plan: Plan, rank: int) -> None:
        """Gathers divided parameters, or prepares for it."""
        if not self.shard:
            return
        self.by_pass = self.shard == "pass" and self._same_passes(plan, rank)
        self._prepare()

    def gather(self) -> None:
        """Gathers divided parameters for forwards without backwards."""
        if self.shard:
            self.by_pass = False
            self._prepare()

    def divide_again(self) -> None:
        """Ends what gather() began."""
        for layer in self._layers:
            layer.reshard()

    def _prepare(self) -> None:
        for layer in self._layers:
            layer.set_requires_gradient_sync(False)
            layer.set_is_last_backward(False)
            layer.set_reshard_after_forward(self.by_pass)
            layer.set_reshard_after_backward(self.by_pass)
        if not self.by_pass:
            for handle in [layer.unshard(async_op=True)
                           for layer in self._layers]:
                handle.wait()

    def _same_passes(self, plan: Plan, rank: int) -> bool:
        """Returns whether this step may gather by pass, alike on all processes:
        gathering is a call that all replicas must make in one order."""
        passes = [(t.kind, t.stage, t.microbatch, t.sub) for t in
                  (plan.tasks[arg] for op, arg in plan.programs[rank]
                   if op == "compute")]
        moved = any("OFFLOAD" in choice for choice in plan.activations.values())
        word = zlib.crc32(repr((passes, moved)).encode())
        ends = torch.tensor([word, -word], dtype=torch.int64,
                            device=self._device)
        dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=self.group)
        same = torch.tensor([int(not moved and int(ends[0]) == -int(ends[1]))],
                            device=self._device)
        dist.all_reduce(same, op=dist.ReduceOp.MIN, group=self._pipeline)
        return bool(same)

    def reduce(self, parameters: Sequence[nn.Parameter]) -> None:
        """Adds up this step's gradients over the replicas. A parameter without
        a gradient in all of them gets none."""
        if not self.shard:
            self._reduce_whole([p for p in parameters if p.requires_grad])
            return
        for layer in self._layers:
            layer.set_requires_gradient_sync(True)
            layer.set_is_last_backward(True)
            layer.set_reshard_after_forward(False)
            layer.set_reshard_after_backward(True)
            # fully_shard sums gradients at the end of a backward of its module:
            # one that adds nothing, by which also the gradients of W are there.
            end = layer(self._missing)
            if end is not None:
                end.backward()
            layer.reshard()

    def _reduce_whole(self, parameters: Sequence[nn.Parameter]) -> None:
        kinds: Dict[torch.dtype, List[torch.Tensor]] = {}
        for p, some in zip(parameters, self._missing_of(parameters)):
            if not some:
                continue
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            kinds.setdefault(p.grad.dtype, []).append(p.grad)
        for gradients in kinds.values():
            for bucket in _buckets(gradients):
                flat = torch.cat([g.reshape(-1) for g in bucket])
                dist.all_reduce(flat, group=self.group)
                parts = flat.split([g.numel() for g in bucket])
                for gradient, part in zip(bucket, parts):
                    gradient.copy_(part.view_as(gradient))

    def _missing_of(self, parameters: Sequence[nn.Parameter]) -> List[bool]:
        """Returns which of the parameters have a gradient in any replica."""
        if not parameters:
            return []
        some = torch.tensor([int(p.grad is not None) for p in parameters],
                            device=self._device)
        dist.all_reduce(some, op=dist.ReduceOp.MAX, group=self.group)
        return [bool(n) for n in some.tolist()]

    def _missing(self, layer: Layer) -> Optional[torch.Tensor]:
        """Returns a tensor whose backward gives zeros to parameters without a
        gradient here, but with one in another replica. None: there are no
        gradients."""
        parameters = [p for p in layer.parameters() if p.requires_grad]
        some = self._missing_of(parameters)
        if not any(some):
            return None
        wanted = [s and p.grad is None for s, p in zip(some, parameters)]
        result: torch.Tensor = _Zeros.apply(wanted, *parameters)
        return result


class _Zeros(torch.autograd.Function):
    """A zero whose gradients are zeros for the inputs that are wanted."""

    @staticmethod
    def forward(ctx: Any, wanted: List[bool],  # type: ignore[override]
                *inputs: torch.Tensor) -> torch.Tensor:
        ctx.wanted, ctx.inputs = wanted, inputs
        return inputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> Any:  # type: ignore[override]
        return (None, *(torch.zeros_like(t) if w else None
                        for w, t in zip(ctx.wanted, ctx.inputs)))


def _buckets(gradients: Sequence[torch.Tensor],
             size: int = 1 << 24) -> List[List[torch.Tensor]]:
    """Returns the gradients in groups of about `size` elements."""
    result: List[List[torch.Tensor]] = []
    count = size
    for gradient in gradients:
        if count + gradient.numel() > size:
            result.append([])
            count = 0
        result[-1].append(gradient)
        count += gradient.numel()
    return result


__all__ = ["Grid", "MODES", "Replicas", "grid"]
