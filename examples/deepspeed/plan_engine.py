"""Pipeloom plans in DeepSpeed: its pipeline engine runs the instruction lists
of `pipeloom plan --for deepspeed --out plan.pb`, with the names of
plan-launch.txt:

    module = PlannedModule(
        layers, PARTS, num_stages=NUM_STAGES, dynamic_shape=DYNAMIC_SHAPE,
        activation_checkpoint_interval=ACTIVATION_CHECKPOINT_INTERVAL,
        loss_fn=loss_fn)
    engine, *_ = deepspeed.initialize(model=module, config={
        "gradient_accumulation_steps": GRADIENT_ACCUMULATION_STEPS,
        "zero_optimization": ZERO_OPTIMIZATION, "bf16": BF16, ...})
    use_plans(engine, lambda step: read_steps("plan.deepspeed"))
    engine.train_batch(data_iter)

All ranks must get the same plan for a step. The data iterators yield the step's
microbatches in the order of `Steps.microbatches`. The module's loss is the mean
over microbatches, whatever their sizes: weigh them in loss_fn.
"""
import dataclasses
import re
from typing import Any, Callable, List, Optional, Sequence, Tuple

from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe import schedule

_OF_BUFFERS = ("LoadMicroBatch", "ForwardPass", "BackwardPass",
               "SendActivation", "RecvActivation", "SendGrad", "RecvGrad")
_OF_STEPS = ("ReduceTiedGrads", "ReduceGrads", "OptimizerStep")

Instruction = Tuple[str, Optional[int]]  # A name and a buffer.


@dataclasses.dataclass(frozen=True)
class Steps:
    """The instruction lists of all ranks. `microbatches` is the order in which
    the data iterators yield the step's microbatches."""
    num_microbatches: int
    microbatches: Tuple[int, ...]
    buffers: Tuple[int, ...]  # Indexed by rank.
    steps: Tuple[Tuple[Tuple[Instruction, ...], ...], ...]


def _instruction(word: str, buffers: int, where: str) -> Instruction:
    found = re.fullmatch(r"(\w+)(?:\((\d+)\))?", word)
    if found and found[2] is None and found[1] in _OF_STEPS:
        return found[1], None
    if (found and found[2] is not None and found[1] in _OF_BUFFERS and
            int(found[2]) < buffers):
        return found[1], int(found[2])
    raise ValueError(f"{where}: \"{word[:40]}\" is no instruction on one of "
                     f"{buffers} buffers, as in ForwardPass(0)")


def parse_steps(text: str, name: str = "steps") -> Steps:
    """Reads a file's text. ValueError names the line, and what it should be."""
    order: Optional[Tuple[int, ...]] = None
    header = None
    buffers: List[int] = []
    steps: List[List[Tuple[Instruction, ...]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{name}:{number}"
        found = re.fullmatch(r"# feed microbatches in the order ([\d,]+)", line)
        if found:
            order = tuple(int(i) for i in found[1].split(","))
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if header is None:
            header = re.fullmatch(r"deepspeed ranks (\d+) microbatches (\d+)",
                                  " ".join(words))
            if header is None:
                raise ValueError(f"{where}: expected \"deepspeed ranks N "
                                 "microbatches N\"")
            continue
        if words[0] == "rank":
            found = re.fullmatch(rf"rank {len(steps)} buffers (\d+)",
                                 " ".join(words))
            if found is None or len(steps) == int(header[1]):
                raise ValueError(f"{where}: expected \"rank {len(steps)} "
                                 f"buffers N\" of {header[1]} ranks")
            buffers.append(int(found[1]))
            steps.append([])
            continue
        if not steps:
            raise ValueError(f"{where}: expected \"rank 0 buffers N\"")
        steps[-1].append(tuple(_instruction(w, buffers[-1], where)
                               for w in words))
    if header is None or len(steps) != int(header[1]):
        raise ValueError(f"{name}: ends after {len(steps)} ranks")
    count = int(header[2])
    if order is None:
        order = tuple(range(count))
    if sorted(order) != list(range(count)):
        raise ValueError(f"{name}: the order of microbatches is {order}; it "
                         f"must have each of {count} once")
    return Steps(count, order, tuple(buffers), tuple(map(tuple, steps)))


def read_steps(path: str) -> Steps:
    """Reads the file that `--out` wrote. OSError; ValueError as parse_steps."""
    with open(path, encoding="utf-8") as file:
        return parse_steps(file.read(), path)


class PlanSchedule(schedule.PipeSchedule):
    """The steps of one rank, as DeepSpeed's engine takes them."""

    def __init__(self, steps: Steps, stage_id: int) -> None:
        super().__init__(steps.num_microbatches, len(steps.steps), stage_id)
        self._steps = steps

    def steps(self) -> Any:
        for step in self._steps.steps[self.stage_id]:
            yield [getattr(schedule, name)() if buffer is None
                   else getattr(schedule, name)(buffer_id=buffer)
                   for name, buffer in step]

    def num_pipe_buffers(self) -> int:
        return self._steps.buffers[self.stage_id]


class PlannedModule(PipelineModule):
    """A PipelineModule whose stage i has layers [parts[i], parts[i + 1])."""

    def __init__(self, layers: Sequence[Any], parts: Sequence[int],
                 **options: Any) -> None:
        layers = list(layers)
        parts = list(parts)
        if (parts != sorted(parts) or not parts or parts[0] != 0 or
                parts[-1] != len(layers)):
            raise ValueError(f"parts is {parts}; it must ascend from 0 to the "
                             f"number of layers, {len(layers)}")
        if options.get("num_stages") != len(parts) - 1:
            raise ValueError(f"num_stages is {options.get('num_stages')}; parts "
                             f"are for {len(parts) - 1}")
        self._planned_parts = parts
        super().__init__(layers, **options)

    def _partition_layers(self, method: str = "uniform") -> None:
        self.parts = self._planned_parts
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])


def use_plans(engine: Any, plans: Callable[[int], Optional[Steps]]) -> None:
    """Makes the engine's train_batch run `plans(step)`; DeepSpeed's own
    schedule where it is None. RuntimeError: the engine has no _train_schedule.
    In train_batch, ValueError: the plan is for another number of stages or
    microbatches than the engine."""
    stock = getattr(engine, "_train_schedule", None)
    if stock is None:
        raise RuntimeError("this DeepSpeed has no PipelineEngine._train_schedule"
                           "; 0.19 has")

    def train_schedule() -> Any:
        steps = plans(engine.global_steps)
        if steps is None:
            return stock()
        mine = (engine.num_stages, engine.micro_batches)
        if mine != (len(steps.steps), steps.num_microbatches):
            raise ValueError(
                f"the plan has {len(steps.steps)} stages and "
                f"{steps.num_microbatches} microbatches, the engine {mine[0]} "
                f"and {mine[1]} (gradient_accumulation_steps)")
        return PlanSchedule(steps, engine.stage_id)

    engine._train_schedule = train_schedule
