"""The results of planning. Each has `data`, what the command prints as JSON
with --format json; numbers that are many are numpy arrays where numpy is
installed, and `to_pandas` gives a table where pandas is."""
import array
import html
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from pipeloom.planner.commands import Path, native

_KINDS = "FBW"  # Forward, backward, weight gradient.


def _numbers(raw: bytes) -> Any:
    """Returns int64 numbers as an array of numpy, else of the standard
    library."""
    try:
        import numpy
    except ImportError:
        return array.array("q", raw)
    return numpy.frombuffer(raw, dtype=numpy.int64)


def _counts(values: Sequence[int]) -> Any:
    return _numbers(array.array("q", values).tobytes())


def _table(rows: Any) -> Any:
    try:
        import pandas
    except ImportError:
        raise ImportError("to_pandas needs pandas, which is not installed"
                          ) from None
    return pandas.DataFrame(rows)


def _text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns columns of text, the first one to the left."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(cell.rjust(width) if i else cell.ljust(width)
                  for i, (cell, width) in enumerate(zip(line, widths))
                  ).rstrip() for line in lines)


def _seconds(us: float) -> str:
    return f"{us / 1e6:.3f} s"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"


def _gib(count: float) -> str:
    return f"{count / 2**30:.2f} GiB"


def _frame(page: str, height: int = 640) -> str:
    """Returns a page as a part of another, such as a notebook."""
    return (f'<iframe srcdoc="{html.escape(page)}" width="100%" '
            f'height="{height}" style="border:0"></iframe>')


class StepPlan:
    """The plan of one step of one replica: which rank computes, sends and
    receives what, in which order (docs/plan_format.md)."""

    def __init__(self, plan: Any) -> None:
        """Wraps a plan of the extension module."""
        self._plan = plan
        self.job: str = plan.job
        self.step: int = plan.step
        self.replica: int = plan.replica
        self.strategy: str = plan.strategy
        self.num_ranks: int = plan.num_ranks
        self.num_tasks: int = plan.num_tasks
        self.module_names: Tuple[str, ...] = tuple(plan.module_names)
        #: Emulated time of the step.
        self.step_time_us: float = plan.step_time_us
        #: No schedule of the step is faster; 0: not known.
        self.lower_bound_us: float = plan.lower_bound_us
        self.bound_source: str = plan.bound_source
        self.gap_ratio: float = plan.gap_ratio
        self.bubble_ratio: float = plan.bubble_ratio
        self.epilogue_ratio: float = plan.epilogue_ratio
        self.mfu: float = plan.mfu
        #: Peak memory of one GPU, indexed by rank.
        self.peak_bytes: Any = _counts(plan.peak_bytes)
        #: Schedules that the search has tried; 0 for a plan that was read.
        self.evaluations: int = plan.evaluations
        self.proven_optimal: bool = plan.proven_optimal

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "plan") -> "StepPlan":
        """Reads a plan of `to_bytes` or `to_text`, checks and emulates it.
        ValueError: it is no plan of a step."""
        return cls(native().StepPlan.read(content, name))

    @classmethod
    def load(cls, path: Path) -> "StepPlan":
        """Reads a plan file."""
        with open(path, "rb") as file:
            return cls.from_bytes(file.read(), os.fspath(path))

    def to_bytes(self) -> bytes:
        """Returns the plan as `pipeloom plan --out plan.pb` writes it."""
        return self._plan.to_bytes()

    def to_text(self) -> str:
        """Returns the plan as `pipeloom plan --out plan.txt` writes it."""
        return self._plan.to_text()

    def save(self, path: Path) -> None:
        """Writes the plan. A name that ends in .txt gets the text form, one
        that ends in .html the report."""
        name = os.fspath(path)
        content = (self.to_text().encode() if name.endswith(".txt") else
                   self.report().encode() if name.endswith(".html") else
                   self.to_bytes())
        with open(path, "wb") as file:
            file.write(content)

    def tasks(self) -> Dict[str, Any]:
        """Returns the tasks as columns: rank, kind (0 forward, 1 backward, 2
        weight gradient), module, stage, microbatch, sub_microbatch, start_ns,
        end_ns, duration_ns, alloc_bytes, free_bytes, recomputes."""
        return {name: _numbers(raw)
                for name, raw in self._plan.task_columns().items()}

    def to_pandas(self) -> Any:
        """Returns the tasks as a table, with names of kinds and modules."""
        table = _table(self.tasks())
        table["kind"] = [_KINDS[kind] for kind in table["kind"]]
        table["module"] = [self.module_names[m] for m in table["module"]]
        table["recomputes"] = table["recomputes"].astype(bool)
        return table

    def report(self) -> str:
        """Returns the HTML report (docs/report.md), a page of its own."""
        return self._plan.report()

    def _repr_html_(self) -> str:
        return _frame(self.report())

    def __repr__(self) -> str:
        return (f"<StepPlan {self.job} step {self.step} replica {self.replica}:"
                f" {self.strategy}, {self.num_tasks} tasks on {self.num_ranks} "
                f"ranks, {self.step_time_us / 1e6:.4g} s>")

    def __reduce__(self) -> Any:
        return StepPlan.from_bytes, (self.to_bytes(),)


class PlannedStep:
    """One step with the plans of its replicas. The step ends when the slowest
    replica ends."""

    def __init__(self, figures: Mapping[str, Any]) -> None:
        self.step: int = figures["step"]
        self.samples: int = figures["samples"]
        self.replicas: Tuple[StepPlan, ...] = tuple(
            StepPlan(plan) for plan in figures["replicas"])
        self.slowest: StepPlan = self.replicas[figures["slowest"]]
        self.step_time_us: float = figures["step_time_us"]
        self.lower_bound_us: float = figures["lower_bound_us"]
        self.bound_source: str = figures["bound_source"]
        self.gap_ratio: float = figures["gap_ratio"]
        #: Gap to what no partition of the job can beat; 0 if it is not known.
        self.any_partition_gap_ratio: float = figures[
            "any_partition_gap_ratio"]
        self.bubble_ratio: float = figures["bubble_ratio"]
        self.epilogue_ratio: float = figures["epilogue_ratio"]
        self.mfu: float = figures["mfu"]
        #: Largest peak of any replica, indexed by rank.
        self.peak_bytes: Any = _counts(figures["peak_bytes"])
        self.search_us: float = figures["search_us"]
        self.evaluations: int = figures["evaluations"]
        #: The figures above, as a dict.
        self.data: Dict[str, Any] = {
            name: value for name, value in figures.items()
            if name not in ("replicas", "slowest")}

    def __repr__(self) -> str:
        return (f"<PlannedStep {self.step}: {len(self.replicas)} replicas, "
                f"{self.step_time_us / 1e6:.4g} s>")


class JobPlan:
    """The planned steps of a job."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.job: str = data["job"]
        self.strategy: str = data["strategy"]
        self.memory_limit_bytes: int = data["memory_limit_bytes"]
        self.mean_step_time_us: float = data["mean_step_time_us"]
        self.steps: Tuple[PlannedStep, ...] = tuple(
            PlannedStep(step) for step in data["steps"])
        self._trainer: Optional[Mapping[str, Any]] = data.get("trainer")
        #: The trainer whose limits the plans keep; "pipeloom": none.
        self.for_trainer: str = (self._trainer["name"] if self._trainer
                                 else "pipeloom")

    def __getitem__(self, step: int) -> PlannedStep:
        return self.steps[step]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def slowest(self) -> StepPlan:
        """The first step's plan, of its slowest replica."""
        return self.steps[0].slowest

    def to_bytes(self, step: int = 0, replica: int = 0) -> bytes:
        """Returns one plan as `pipeloom plan --out` writes it."""
        return self.steps[step].replicas[replica].to_bytes()

    def _plan_names(self, path: Path) -> List[List[str]]:
        """Returns the names of plans, indexed by step and replica."""
        root, end = os.path.splitext(os.fspath(path))
        several = len(self.steps) > 1
        return [[root + (f"-{step.step:04d}" if several else "")
                 + (f"-r{plan.replica}" if plan.replica > 0 else "") + end
                 for plan in step.replicas] for step in self.steps]

    def trainer_files_for(self, path: Path) -> Dict[str, str]:
        """Returns the trainer's files by their names, as `pipeloom plan --for
        --out PATH` writes them next to the plans: a schedule for each plan,
        then the launch arguments. Empty without `for_trainer`. ValueError:
        `path` is the name of one of them."""
        if self._trainer is None:
            return {}
        files: Dict[str, str] = {}
        plans = self._plan_names(path)
        for names, schedules in zip(plans, self._trainer["schedules"]):
            for name, (extension, text) in zip(names, schedules):
                if not extension:
                    continue
                file = f"{os.path.splitext(name)[0]}.{extension}"
                if file == name:
                    raise ValueError(
                        f"path {os.fspath(path)}: that is the name of the "
                        "trainer's file; plans end in .pb or .txt")
                files[file] = text
        root = os.path.splitext(os.fspath(path))[0]
        launch = f"{root}-launch.{self._trainer['launch_extension']}"
        files[launch] = os.path.basename(root).join(
            self._trainer["launch_parts"])
        return files

    @property
    def trainer_files(self) -> Dict[str, str]:
        """The trainer's files of plans that `save("plan.pb")` writes, by name:
        plan.csv and plan-launch.txt for torch."""
        return self.trainer_files_for("plan.pb")

    @property
    def launch_arguments(self) -> str:
        """How the trainer is launched, the last of `trainer_files`; "" without
        `for_trainer`."""
        return next(reversed(list(self.trainer_files.values())), "")

    def save(self, path: Path) -> List[str]:
        """Writes all plans, as `StepPlan.save` does, under the names that
        `pipeloom plan --out` gives them: plan.pb for one, plan-0003-r1.pb for
        several; with `for_trainer`, the trainer's files next to them, unless
        they are reports. Returns the names."""
        is_report = os.fspath(path).endswith(".html")
        files = {} if is_report else self.trainer_files_for(path)
        names = []
        for step, of_step in zip(self.steps, self._plan_names(path)):
            for plan, name in zip(step.replicas, of_step):
                plan.save(name)
                names.append(name)
        for name, text in files.items():
            with open(name, "w", encoding="utf-8", newline="") as file:
                file.write(text)
            names.append(name)
        return names

    def to_pandas(self) -> Any:
        """Returns the figures of the steps as a table."""
        return _table([{**step.data, "peak_bytes": max(step.peak_bytes)}
                       for step in self.steps])

    def report(self) -> str:
        """Returns the HTML report of the first step's slowest replica."""
        return self.slowest.report()

    def _repr_html_(self) -> str:
        return _frame(self.report())

    def __str__(self) -> str:
        """Returns the strategy and a table of the steps."""
        rows = [[str(step.step), str(step.samples),
                 _seconds(step.step_time_us),
                 f"{_seconds(step.lower_bound_us)} ({step.bound_source})",
                 _percent(step.gap_ratio), _percent(step.bubble_ratio),
                 _percent(step.mfu), _gib(max(step.peak_bytes))]
                for step in self.steps]
        limits = (f", for {self.for_trainer}" if self._trainer else "")
        return f"{self.job}, strategy {self.strategy}{limits}\n" + _text_table(
            ["step", "samples", "step time", "lower bound", "gap", "bubble",
             "MFU", "peak memory"], rows)

    def __repr__(self) -> str:
        steps = "1 step" if len(self.steps) == 1 else f"{len(self.steps)} steps"
        return (f"<JobPlan {self.job}: {self.strategy}, {steps}, "
                f"{self.mean_step_time_us / 1e6:.4g} s a step>")


class _Answer:
    """Holds the printed result of a command."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        #: The JSON that the command prints.
        self.data: Dict[str, Any] = dict(data)
        self.job_name: str = data["job"]

    def _rows(self) -> Sequence[Mapping[str, Any]]:
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Returns the rows as a table."""
        return _table([dict(row) for row in self._rows()])


class Comparison(_Answer):
    """Strategies on the same steps."""

    def _rows(self) -> Sequence[Mapping[str, Any]]:
        return self.rows

    @property
    def rows(self) -> List[Dict[str, Any]]:
        """A row for each strategy: strategy, mean_step_time_us, gap_ratio,
        bubble_ratio, mfu, peak_bytes, ...; or strategy and error."""
        return self.data["rows"]

    @property
    def best(self) -> str:
        """The name of the fastest strategy."""
        done = [row for row in self.rows if "error" not in row]
        return min(done, key=lambda row: row["mean_step_time_us"])["strategy"]

    def __getitem__(self, strategy: str) -> Dict[str, Any]:
        for row in self.rows:
            if row["strategy"] == strategy:
                return row
        raise KeyError(strategy)

    def __str__(self) -> str:
        """Returns a table of the strategies, then why others have no plan."""
        table = _text_table(
            ["strategy", "step time", "gap", "bubble", "MFU", "peak memory"],
            [[row["strategy"], _seconds(row["mean_step_time_us"]),
              _percent(row["gap_ratio"]), _percent(row["bubble_ratio"]),
              _percent(row["mfu"]), _gib(row["peak_bytes"])]
             for row in self.rows if "error" not in row])
        return "\n".join([table, *(f"{row['strategy']}: {row['error']}"
                                   for row in self.rows if "error" in row)])

    def __repr__(self) -> str:
        return (f"<Comparison {self.job_name}: {len(self.rows)} strategies, "
                f"the fastest is {self.best}>")


class Emulation(_Answer):
    """Time and memory of a step in simulated time."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__(data)
        self.step_time_us: float = data["step_time_us"]
        self.lower_bound_us: float = data["lower_bound_us"]
        self.bubble_ratio: float = data["bubble_ratio"]
        self.epilogue_ratio: float = data["epilogue_ratio"]
        self.mfu: float = data["mfu"]
        #: Peak memory of one GPU, indexed by rank.
        self.peak_bytes: Any = _counts(data["peak_bytes"])
        #: Times and memory of each rank.
        self.ranks: List[Dict[str, Any]] = data["ranks"]

    def _rows(self) -> Sequence[Mapping[str, Any]]:
        return self.ranks

    def __repr__(self) -> str:
        return (f"<Emulation {self.job_name}: {self.step_time_us / 1e6:.4g} s, "
                f"bubble {100 * self.bubble_ratio:.1f} %>")


class LayoutSearch(_Answer):
    """The layouts of a search, the fastest first."""

    def __init__(self, data: Mapping[str, Any],
                 partition: Mapping[str, Any]) -> None:
        super().__init__(data)
        #: The best layout with its partition, for `partition=` of `plan`.
        self.partition: Dict[str, Any] = dict(partition)
        self.step_time_us: float = data["step_time_us"]
        self.layouts: List[Dict[str, Any]] = data["layouts"]

    @property
    def best(self) -> Dict[str, Any]:
        """The sizes of the best layout: tp, pp, dp, microbatches, ..."""
        return self.partition["layout"]

    def _rows(self) -> Sequence[Mapping[str, Any]]:
        return self.layouts

    def __repr__(self) -> str:
        return (f"<LayoutSearch {self.job_name}: {len(self.layouts)} layouts, "
                f"{self.step_time_us / 1e6:.4g} s with {self.best}>")


class WhatIf(_Answer):
    """Changes of a job and what a step takes with each."""

    @property
    def configurations(self) -> List[Dict[str, Any]]:
        """A row for each configuration: label, set, gpus, step_time_us, mfu,
        peak_bytes, best, ...; or label and error."""
        return self.data["configurations"]

    def _rows(self) -> Sequence[Mapping[str, Any]]:
        return self.configurations

    def __repr__(self) -> str:
        return (f"<WhatIf {self.job_name}: {len(self.configurations)} "
                "configurations>")
