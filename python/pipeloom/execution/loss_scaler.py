"""Scaled losses for fp16, alike on all ranks."""
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

import torch
import torch.distributed as dist

from pipeloom.execution.gradients import local, meshes_of, reduce_over

if TYPE_CHECKING:
    from pipeloom.torch import Executor


class LossScaler:
    """Does what torch's GradScaler does, over all ranks of a pipeline: that one
    would let each rank skip steps, and change its scale, by itself.

        scaler = LossScaler()
        executor = Executor(..., scaler=scaler)
        executor.run(plan, batch)         # Under autocast to fp16.
        scaler.unscale_()                 # Only if gradients are looked at.
        executor.clip_grad_norm_(1.0)
        if scaler.step(optimizer):        # In place of optimizer.step().
            scheduler.step()

    loss_fn returns the loss unscaled, and StepResult.loss is unscaled. If a
    gradient of any rank of the pipeline is not finite, no rank steps, and the
    scale is multiplied by `backoff_factor`; after `growth_interval` steps in a
    row, it is multiplied by `growth_factor`. All ranks of the group must call
    `step` (a rank without an optimizer with None) and `unscale_`. With
    `replicas` of the Executor the ranks of all replicas decide alike; without,
    gradients must have been combined over the replicas in reduce_fn. Parameters
    must be fp32.
    """

    def __init__(self, init_scale: float = 65536.0, growth_factor: float = 2.0,
                 backoff_factor: float = 0.5,
                 growth_interval: int = 2000) -> None:
        for name, value, right in (
                ("init_scale", init_scale, 0 < init_scale < float("inf")),
                ("growth_factor", growth_factor, growth_factor > 1),
                ("backoff_factor", backoff_factor, 0 < backoff_factor < 1),
                ("growth_interval", growth_interval, growth_interval >= 1)):
            if not right:
                raise ValueError(
                    f"{name} is {value}; init_scale must be > 0 and finite, "
                    "growth_factor > 1, backoff_factor between 0 and 1, and "
                    "growth_interval >= 1")
        self.scale = float(init_scale)
        self.skipped = 0  # Steps so far.
        self._growth = growth_factor
        self._backoff = backoff_factor
        self._interval = growth_interval
        self._in_a_row = 0
        self._executor: Optional["Executor"] = None
        # Whether gradients are unscaled, and whether all ranks' are finite.
        self._finite: Optional[bool] = None

    def bind(self, executor: "Executor") -> None:
        """Called by the Executor. ValueError: it has another already, or steps
        an optimizer itself."""
        if executor._optimizer is not None:
            raise ValueError("the Executor has an optimizer and a scaler: keep "
                             "the optimizer, and call scaler.step(optimizer) "
                             "after run()")
        if self._executor is not None:
            raise ValueError("a LossScaler is of one Executor: make another")
        self._executor = executor

    def check_scaled(self) -> None:
        """RuntimeError: gradients are unscaled, and no step followed."""
        if self._finite is not None:
            raise RuntimeError(
                "run() would add scaled gradients to those that unscale_() has "
                "unscaled: call step() before")

    def unscale_(self) -> None:
        """Divides this rank's gradients by the scale. TypeError: one of them is
        fp16. RuntimeError: no Executor has this scaler."""
        if self._finite is not None:
            return
        if self._executor is None:
            raise RuntimeError("no Executor has this LossScaler: give it to "
                               "one, Executor(..., scaler=scaler)")
        gradients = self._gradients(self._executor)
        finite = True
        for gradient in gradients:
            gradient.mul_(1.0 / self.scale)
            finite = finite and bool(torch.isfinite(gradient).all())
        self._finite = self._on_all(self._executor, finite)

    def step(self, optimizer: Optional[torch.optim.Optimizer]) -> bool:
        """Steps the optimizer if all gradients are finite, and chooses the next
        scale. Returns whether it has stepped. ValueError: the optimizer has a
        gradient that is not one of Executor.parameters(), and is scaled."""
        if self._executor is not None and optimizer is not None:
            self._check_known(self._executor, optimizer)
        self.unscale_()
        stepped, self._finite = bool(self._finite), None
        if stepped:
            if optimizer is not None:
                optimizer.step()
            self._in_a_row += 1
            if self._in_a_row == self._interval:
                self.scale *= self._growth
                self._in_a_row = 0
        else:
            self.skipped += 1
            self.scale *= self._backoff
            self._in_a_row = 0
        return stepped

    def state_dict(self) -> Dict[str, Any]:
        return {"scale": self.scale, "in_a_row": self._in_a_row,
                "skipped": self.skipped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.scale = float(state["scale"])
        self._in_a_row = int(state["in_a_row"])
        self.skipped = int(state["skipped"])

    @staticmethod
    def _check_known(executor: "Executor",
                     optimizer: torch.optim.Optimizer) -> None:
        known = set(executor.parameters())
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None and p not in known:
                    raise ValueError(
                        f"the optimizer has a parameter of shape "
                        f"{tuple(p.shape)} that no stage of the Executor has, "
                        "so that its gradient would stay multiplied by the "
                        "scale: let it be in a stage, or in a loss_fn that is "
                        "an nn.Module")

    @staticmethod
    def _gradients(executor: "Executor") -> List[torch.Tensor]:
        result = []
        for p in executor.parameters():
            if p.grad is None:
                continue
            gradient = local(p.grad)
            if gradient.dtype == torch.float16:
                raise TypeError(
                    f"a gradient of shape {tuple(gradient.shape)} is fp16: "
                    "keep parameters in fp32, and compute in fp16 by autocast")
            result.append(gradient)
        return result

    @staticmethod
    def _on_all(executor: "Executor", finite: bool) -> bool:
        flag = torch.tensor([int(finite)], device=executor._check_on)
        for mesh in meshes_of(executor.parameters()):
            reduce_over(mesh, flag, dist.ReduceOp.MIN)
        dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=executor._group)
        if executor._replicas is not None:
            dist.all_reduce(flag, op=dist.ReduceOp.MIN,
                            group=executor._replicas)
        return bool(flag)
