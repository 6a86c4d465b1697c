"""Losses scaled for fp16: gradients that fp16 would flush to zero survive, and
all ranks skip a step if a gradient of one of them is not finite."""
import os
import sys
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "python"))

try:
    import google.protobuf  # noqa: F401
    import grpc  # noqa: F401
    import torch
    import torch.distributed as dist
    from torch import nn
    AVAILABLE = dist.is_available()
except ImportError:
    AVAILABLE = False

from gloo_ranks import run_ranks  # noqa: E402

if AVAILABLE:
    from pipeloom.plan import Microbatch, SubMicrobatch
    from pipeloom.static_schedule import Stage, static_plan
    from pipeloom.torch import Executor, LossScaler

WIDTH = 8
STAGES = (Stage(0, 0, 1, 0, 0), Stage(0, 1, 1, 1, 0))
BLOCKS = 2  # Microbatches.
TINY = 2.0 ** -26  # Below the least of fp16, 2^-24.

if AVAILABLE:
    class Half(torch.autograd.Function):
        """Rounds to fp16, values and gradients, as a layer in fp16 does."""

        @staticmethod
        def forward(ctx, x):
            return x.half().float()

        @staticmethod
        def backward(ctx, gradient):
            return gradient.half().float()

    class Part(nn.Module):

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x, item):
            x = item.batch[item.microbatch] if x is None else x
            return Half.apply(self.linear(Half.apply(x)))


def build():
    torch.manual_seed(0)
    return [Part() for _ in STAGES]


def mean_loss(output):
    return output.sum() * TINY


def reference(scale):
    """Returns the stages with the gradients of one process."""
    parts = build()
    total = 0
    for x in batch():
        for part in parts:
            x = Half.apply(part.linear(Half.apply(x)))
        total = total + mean_loss(x) / BLOCKS
    (total * scale).backward()
    for part in parts:
        for p in part.parameters():
            p.grad /= scale
    return parts, float(total.detach())


def batch():
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(4, WIDTH, generator=generator) + 0.5
            for _ in range(BLOCKS)]


def train(rank):
    """Returns what went wrong, in words."""
    plan = static_plan(STAGES, (), [
        Microbatch((m,), 1 / BLOCKS, (SubMicrobatch(0),))
        for m in range(BLOCKS)], ("text",))
    wrong = []

    def check(holds, what):
        if not holds:
            wrong.append(what)

    def everywhere(holds):
        flag = torch.tensor([int(holds)])
        dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        return bool(flag)

    parts = build()
    mine = parts[rank]
    scaler = LossScaler(1024.0, growth_interval=2)
    executor = Executor({rank: mine}, rank=rank, scaler=scaler,
                        loss_fn=lambda output, item: mean_loss(output))
    optimizer = torch.optim.SGD(mine.parameters(), lr=2.0 ** 20)
    # Without a scale, what is tiny is lost on the first rank.
    flushed, _ = reference(1.0)
    check(float(flushed[0].linear.weight.grad.abs().max()) == 0.0,
          "nothing is flushed")
    right, loss = reference(1024.0)
    check(float(right[0].linear.weight.grad.abs().min()) > 0.0,
          "the scale saves nothing")
    result = executor.run(plan, batch())
    scaler.unscale_()
    scaler.unscale_()
    total = torch.tensor([result.loss], dtype=torch.float64)
    dist.all_reduce(total)
    check(abs(float(total) - loss) < 1e-6 * abs(loss), "the loss is scaled")
    for a, b in zip(mine.parameters(), right[rank].parameters()):
        check(torch.allclose(a.grad, b.grad, rtol=1e-3, atol=0), "gradients")
    try:
        executor.run(plan, batch())
        check(False, "run() after unscale_()")
    except Exception as error:  # pylint: disable=broad-except
        check("call step() before" in str(error), str(error))
    before = [p.detach().clone() for p in mine.parameters()]
    check(scaler.step(optimizer), "the first step is skipped")
    check(any(not torch.equal(a, b) for a, b in zip(
        before, mine.parameters())), "the first step does nothing")
    check(scaler.scale == 1024.0, "the scale after one step")
    # Rank 1 alone has a gradient that is not finite.
    for number in (float("inf"), float("nan")):
        optimizer.zero_grad()
        executor.run(plan, batch())
        if rank == 1:
            mine.linear.bias.grad[0] = number
        scale = scaler.scale
        before = [p.detach().clone() for p in mine.parameters()]
        check(not scaler.step(optimizer), f"{number} is stepped with")
        check(all(torch.equal(a, b) for a, b in zip(
            before, mine.parameters())), f"{number} is in the parameters")
        check(scaler.scale == scale / 2, f"the scale after {number}")
    check(scaler.skipped == 2, "the count of skipped steps")
    # Two good steps in a row double the scale; a checkpoint goes on.
    optimizer.zero_grad()
    executor.run(plan, batch())
    scaler.step(optimizer)
    other = LossScaler(growth_interval=2)
    other.load_state_dict(scaler.state_dict())
    check(other.scale == 256.0, "the scale of a checkpoint")
    again = Executor({rank: mine}, rank=rank, scaler=other,
                     loss_fn=lambda output, item: mean_loss(output))
    optimizer.zero_grad()
    again.run(plan, batch())
    # A rank without an optimizer takes part.
    check(other.step(optimizer if rank else None), "the last step is skipped")
    check(other.scale == 512.0, "the scale does not grow")
    check(everywhere(not wrong), "another rank is wrong")
    return wrong


def train_loss(rank):
    """A loss with a parameter: as an nn.Module, and as a function."""
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))

        def forward(self, output, item):
            return (output * self.factor).square().mean()

    plan = static_plan(STAGES, (), [
        Microbatch((m,), 1 / BLOCKS, (SubMicrobatch(0),))
        for m in range(BLOCKS)], ("text",))
    part, loss = build()[rank], Loss()
    scaler = LossScaler(1024.0)
    executor = Executor({rank: part}, rank=rank, loss_fn=loss, scaler=scaler)
    executor.run(plan, batch())
    scaler.unscale_()
    factor = None if loss.factor.grad is None else float(loss.factor.grad)
    norm = float(executor.clip_grad_norm_(1e9))
    scaler = LossScaler(1024.0)
    Executor({rank: part}, rank=rank, scaler=scaler,
             loss_fn=lambda *given: loss(*given)).run(plan, batch())
    try:
        scaler.step(torch.optim.SGD([*part.parameters(), *loss.parameters()],
                                    lr=0.1) if rank else None)
        said = ""
    except ValueError as error:
        said = str(error)
    if said:  # The other rank waits for this one.
        scaler.step(None)
    return factor, norm, said


@unittest.skipUnless(AVAILABLE, "torch, grpcio or protobuf is missing")
class LossScalerTest(unittest.TestCase):

    def test_all_ranks_step_or_none_does(self):
        self.assertEqual(run_ranks(2, train), {0: [], 1: []})

    def test_the_parameters_of_a_loss_are_unscaled(self):
        parts = build()
        factor = torch.ones((), requires_grad=True)
        for x in batch():
            for part in parts:
                x = Half.apply(part.linear(Half.apply(x)))
            ((x * factor).square().mean() / BLOCKS).backward()
        norm = torch.nn.utils.clip_grad_norm_(
            [factor, *(p for part in parts for p in part.parameters())], 1e9)
        results = run_ranks(2, train_loss)
        self.assertEqual(results[0][::2], (None, ""))
        self.assertAlmostEqual(results[1][0] / float(factor.grad), 1.0, 2)
        for _, got, _ in results.values():
            self.assertAlmostEqual(got / float(norm), 1.0, 2)
        self.assertIn("a parameter of shape () that no stage", results[1][2])

    def test_what_cannot_be_is_refused(self):
        for options, name in (({"init_scale": 0.0}, "init_scale"),
                              ({"init_scale": float("nan")}, "init_scale"),
                              ({"growth_factor": 1.0}, "growth_factor"),
                              ({"backoff_factor": 1.0}, "backoff_factor"),
                              ({"growth_interval": 0}, "growth_interval")):
            with self.assertRaisesRegex(ValueError, f"^{name} is "):
                LossScaler(**options)
        with self.assertRaisesRegex(RuntimeError, "no Executor has"):
            LossScaler().step(None)


if __name__ == "__main__":
    unittest.main()
