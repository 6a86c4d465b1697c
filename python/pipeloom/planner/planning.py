"""The questions to the planner. All of them take a job (or the name or file of
one) and samples: the name of a shipped batch, a batch file, or pipeloom.Sample
and dicts. None means the job's value or the command's default.

They run without the interpreter's lock, call `progress` with a line of text now
and then, and end at Ctrl-C. Bad arguments are a ValueError that names them;
RuntimeError: nothing was found that fits, or no strategy can run the job. Notes
are issued as PlanningWarning."""
from typing import (Any, Dict, Iterable, List, Mapping, Optional, Sequence,
                    Tuple, Union)

from pipeloom.planner import commands
from pipeloom.planner.commands import Files, Path, Progress, Samples, Value
from pipeloom.planner.inputs import Job
from pipeloom.planner.results import (Comparison, Emulation, JobPlan,
                                      LayoutSearch, StepPlan, WhatIf)

JobLike = Union[Job, Path, Mapping[str, Any]]
Partition = Union[None, Path, Mapping[str, Any]]
Time = Union[None, str, int, float]


def _arguments(job: JobLike, batch: Samples, files: Files, *,
               deadline: Time = None, partition: Partition = None,
               **options: Value) -> List[str]:
    return [*Job.load(job).arguments(files),
            *commands.flags({
                "batch": commands.samples_argument(batch, files),
                "deadline": commands.seconds(deadline),
                "partition": commands.partition_argument(partition, files),
                **options})]


def plan(job: JobLike, samples: Samples, *, steps: Optional[int] = None,
         replicas: Optional[int] = None, strategy: Optional[str] = None,
         deadline: Time = None, evaluations: Optional[int] = None,
         seed: Optional[int] = None, threads: Optional[int] = None,
         workers: Optional[int] = None, microbatches: Optional[int] = None,
         memory_limit: Union[None, int, str] = None,
         reserve: Union[None, float, str] = None,
         partition: Partition = None, costs: Optional[str] = None,
         profile: Optional[Path] = None,
         assignment: Optional[str] = None, shuffle: Optional[int] = None,
         robust: bool = False, jitter: Optional[float] = None,
         slow_rank: Optional[float] = None,
         robust_samples: Optional[int] = None, learned: Optional[Path] = None,
         attention_density: Optional[Sequence[float]] = None,
         slow_ranks: Optional[Mapping[int, float]] = None,
         slow_links: Optional[Mapping[Tuple[int, int],
                                      Union[float, str]]] = None,
         for_trainer: Optional[str] = None,
         progress: Progress = None) -> JobPlan:
    """Plans training steps, as `pipeloom plan` does: the plans have the same
    bytes for the same arguments, if the search is bounded by evaluations.

    steps: how many, one after another in the samples.
    replicas: plan only the first ones.
    strategy: pipeloom.planner.strategies() lists them.
    deadline: wall time of each search; seconds, or text such as "100ms".
    evaluations: schedules to try; the plan then depends on the seed alone.
    threads: of the search; 0: one for each core.
    workers: searchers that share the evaluations, 1 to 256; 2 by default.
    memory_limit: of one GPU; bytes, or text such as "64GiB".
    reserve: share of memory that plans leave free.
    partition: "dip", "search", a file, or LayoutSearch.partition.
    costs: of operators, "profile" or "roofline".
    profile: a file of `pipeloom calibrate`, of the GPU of the job.
    assignment: of samples: "in-order", "balanced" or "deferred".
    shuffle: seed of a random order of the samples.
    robust: choose by the 90th percentile under jitter and a slow rank, with
        `jitter`, `slow_rank` and `robust_samples`.
    learned: a file of times that `pipeloom run --learn` measured.
    attention_density: of each step.
    slow_ranks: {3: 1.4}: plan for a rank 3 that takes 1.4 times as long; the
        partition is the one chosen without the slowdown.
    slow_links: {(6, 7): "+60ms"}: the same of transfers from rank 6 to 7,
        which take so much longer, or a factor.
    for_trainer: plan only what that trainer can execute (docs/integration.md):
        "megatron", "megatron-stock", "torch", "torchtitan" or "deepspeed"; by
        default "pipeloom", everything. The result has its schedule files and
        launch arguments: `trainer_files`, `launch_arguments`, and `save`
        writes them. RuntimeError names what of the job it cannot execute.
    """
    with Files() as files:
        arguments = _arguments(
            job, samples, files, steps=steps, replicas=replicas,
            strategy=strategy, deadline=deadline, evaluations=evaluations,
            seed=seed, threads=threads, workers=workers,
            microbatches=microbatches, memory_limit=memory_limit,
            reserve=reserve, partition=partition, costs=costs, profile=profile,
            assignment=assignment, shuffle=shuffle, robust=robust,
            jitter=jitter, slow_rank=slow_rank, samples=robust_samples,
            slow=_factors(slow_ranks, "slow_ranks"),
            slow_link=_factors(slow_links, "slow_links"),
            learned=learned, attention_density=attention_density,
            **{"for": for_trainer})
        kind, message, planned, notes = commands.native().plan(arguments,
                                                               progress)
        notes = [files.clean(note) for note in notes]
        commands.raise_for(kind, files.clean(message))
    commands.tell(notes)
    return JobPlan(planned)


def compare(job: JobLike, samples: Samples, *,
            strategies: Optional[Sequence[str]] = None, ablation: bool = False,
            static: bool = False, steps: Optional[int] = None,
            replicas: Optional[int] = None, deadline: Time = None,
            evaluations: Optional[int] = None, seed: Optional[int] = None,
            threads: Optional[int] = None, workers: Optional[int] = None,
            microbatches: Optional[int] = None,
            memory_limit: Union[None, int, str] = None,
            reserve: Union[None, float, str] = None,
            partition: Partition = None, same_partition: Partition = None,
            costs: Optional[str] = None, profile: Optional[Path] = None,
            assignment: Optional[str] = None, shuffle: Optional[int] = None,
            for_trainer: Optional[str] = None,
            progress: Progress = None) -> Comparison:
    """Plans the same steps with several strategies under the same memory limit,
    as `pipeloom compare` does. Without `strategies`, all; `ablation`: the parts
    of dip one after another; `static`: pipeloom's first order replayed on all
    steps, too. `same_partition`: one partition for every strategy, by the name
    of a strategy, "search", a file or a dict. `for_trainer`: every row keeps to
    what that trainer can execute, or says why it cannot. The rest is as in
    `plan`."""
    with Files() as files:
        data, notes = commands.run(
            ["compare", *_arguments(
                job, samples, files, strategies=strategies, ablation=ablation,
                static=static, steps=steps, replicas=replicas,
                deadline=deadline, evaluations=evaluations, seed=seed,
                threads=threads, workers=workers, microbatches=microbatches,
                memory_limit=memory_limit, reserve=reserve,
                partition=partition,
                same_partition=commands.partition_argument(
                    same_partition, files, "same_partition.json"),
                costs=costs, profile=profile, assignment=assignment,
                shuffle=shuffle,
                **{"for": for_trainer})],
            files, progress)
    commands.tell(notes)
    return Comparison(data)


def _factors(factors: Optional[Mapping[Any, Any]],
             name: str) -> Optional[List[str]]:
    """Returns {3: 1.2} as 3=1.2 and {(0, 1): 2} as 0-1=2; `name` is the
    argument's."""
    if factors is None:
        return None
    if not isinstance(factors, Mapping):
        raise TypeError(f"{name} is {factors!r}; give a dict of factors")
    return [f"{'-'.join(map(str, of)) if isinstance(of, tuple) else of}="
            f"{factor}" for of, factor in factors.items()]


def emulate(source: Union[StepPlan, JobPlan, JobLike],
            samples: Optional[Samples] = None, *,
            sharing: Optional[str] = None,
            ranks_per_nic: Optional[int] = None,
            slow_ranks: Optional[Mapping[int, float]] = None,
            slow_links: Optional[Mapping[Tuple[int, int], float]] = None,
            jitter: Optional[float] = None,
            link_jitter: Optional[float] = None,
            jitter_samples: Optional[int] = None,
            blocking_sends: bool = False, replicas: Optional[int] = None,
            strategy: Optional[str] = None, deadline: Time = None,
            evaluations: Optional[int] = None, seed: Optional[int] = None,
            threads: Optional[int] = None, microbatches: Optional[int] = None,
            memory_limit: Union[None, int, str] = None,
            reserve: Union[None, float, str] = None,
            partition: Partition = None, costs: Optional[str] = None,
            profile: Optional[Path] = None,
            assignment: Optional[str] = None, shuffle: Optional[int] = None,
            learned: Optional[Path] = None,
            attention_density: Optional[float] = None,
            progress: Progress = None) -> Emulation:
    """Carries a step out in simulated time, as `pipeloom emulate` does.

    source: a plan, which is taken as it is, or a job, whose first step of
        `samples` is planned first, with the options of `plan`.
    sharing: which transfers wait for each other: "none", "per-pair",
        "both-ways", "per-rank", "per-nic" or "fair-nic".
    slow_ranks: {3: 1.2}: all that rank 3 computes takes 1.2 times as long.
    slow_links: {(0, 1): 2}: the same of transfers from rank 0 to 1.
    jitter, link_jitter: deviation of durations, drawn `jitter_samples` times.
    blocking_sends: a rank computes nothing while it sends.
    """
    options: Dict[str, Any] = dict(
        sharing=sharing, ranks_per_nic=ranks_per_nic,
        slow_rank=_factors(slow_ranks, "slow_ranks"),
        slow_link=_factors(slow_links, "slow_links"),
        jitter=jitter, link_jitter=link_jitter, samples=jitter_samples,
        blocking_sends=blocking_sends, replicas=replicas, strategy=strategy,
        evaluations=evaluations, seed=seed, threads=threads,
        microbatches=microbatches, memory_limit=memory_limit, reserve=reserve,
        costs=costs, profile=profile, assignment=assignment, shuffle=shuffle,
        learned=learned, attention_density=attention_density)
    with Files() as files:
        if isinstance(source, JobPlan):
            source = source.slowest
        if isinstance(source, StepPlan):
            if samples is not None:
                raise ValueError("samples: a plan takes none, as it is planned "
                                 "already")
            arguments = ["--plan=" + files.add("plan.pb", source.to_bytes()),
                         *commands.flags({
                             **options, "deadline": commands.seconds(deadline),
                             "partition": commands.partition_argument(
                                 partition, files)})]
        elif samples is None:
            raise ValueError("samples is missing: a job is planned for a batch")
        else:
            arguments = _arguments(source, samples, files, deadline=deadline,
                                   partition=partition, **options)
        data, notes = commands.run(["emulate", *arguments], files, progress)
    commands.tell(notes)
    return Emulation(data)


def search_layout(job: JobLike, samples: Samples, *,
                  gpus: Optional[int] = None, tp: Optional[int] = None,
                  cp: Optional[int] = None, ep: Optional[int] = None,
                  pp: Optional[int] = None, dp: Optional[int] = None,
                  by_module: bool = False, tries: Optional[int] = None,
                  effort: Optional[int] = None,
                  strategy: Optional[str] = None, seed: Optional[int] = None,
                  threads: Optional[int] = None,
                  microbatches: Optional[int] = None,
                  memory_limit: Union[None, int, str] = None,
                  reserve: Union[None, float, str] = None,
                  costs: Optional[str] = None,
                  profile: Optional[Path] = None,
                  progress: Progress = None) -> LayoutSearch:
    """Searches the parallel layout of a job and its partition, as `pipeloom
    partition --layouts` does. `tp` and so on fix a size; `gpus`: of each
    layout; `by_module`: smaller tp and cp for modules other than the largest,
    too; `tries`: partitions of each finalist; `effort`: times as many. Takes
    seconds to minutes."""
    with Files() as files:
        data, notes = commands.run(
            ["partition", *_arguments(
                job, samples, files, layouts=True, gpus=gpus, tp=tp, cp=cp,
                ep=ep, pp=pp, dp=dp, by_module=by_module, tries=tries,
                effort=effort, strategy=strategy, seed=seed, threads=threads,
                microbatches=microbatches, memory_limit=memory_limit,
                reserve=reserve, costs=costs, profile=profile,
                out=files.path("partition.json"))], files, progress)
        partition = commands.from_json(files.read("partition.json"))
    data.pop("out", None)  # A file of this call.
    commands.tell(notes)
    return LayoutSearch(data, partition)


def whatif(job: JobLike, samples: Samples, *,
           sweep: Optional[Mapping[str, Sequence[Any]]] = None,
           ask: Union[None, str, Sequence[str]] = None,
           gpus: Optional[int] = None, budget: Optional[float] = None,
           prices: Optional[Mapping[str, float]] = None,
           steps: Optional[int] = None, replicas: Optional[int] = None,
           strategy: Optional[str] = None, deadline: Time = None,
           evaluations: Optional[int] = None, seed: Optional[int] = None,
           threads: Optional[int] = None, microbatches: Optional[int] = None,
           memory_limit: Union[None, int, str] = None,
           reserve: Union[None, float, str] = None,
           partition: Partition = None, costs: Optional[str] = None,
           profile: Optional[Path] = None,
           assignment: Optional[str] = None, shuffle: Optional[int] = None,
           journal: Optional[Path] = None,
           progress: Progress = None) -> WhatIf:
    """Plans and emulates changes of a job, as `pipeloom whatif` does.

    sweep: {"training.microbatches": [16, 32], "parallel.tp": [2, 4]}: every
        combination.
    ask: named questions (docs/whatif.md), such as "gpu" or "microbatches".
    gpus: of ask="layout": the number of GPUs, in the place of the job's.
    budget, prices: of ask="budget": what all GPUs may cost an hour, and the
        price of one by cluster, such as {"h100-sxm": 2.5}.
    journal: a file that keeps outcomes, from which a call that was ended goes
        on.
    """
    for path, values in (sweep or {}).items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TypeError(f"sweep[{path!r}] is {values!r}; give a list of "
                            "the values to try")
    sweeps = [f"--sweep={path}=" + ",".join(
        v if isinstance(v, str) else commands.to_json(v) for v in values)
        for path, values in (sweep or {}).items()]
    if prices:
        sweeps.append("--prices=" + ",".join(
            f"{name}={price}" for name, price in prices.items()))
    if budget is not None:
        sweeps.append(f"--budget={budget}")
    if gpus is not None:
        sweeps.append(f"--gpus={gpus}")
    with Files() as files:
        data, notes = commands.run(
            ["whatif", *_arguments(
                job, samples, files, ask=ask, steps=steps, replicas=replicas,
                strategy=strategy, deadline=deadline, evaluations=evaluations,
                seed=seed, threads=threads, microbatches=microbatches,
                memory_limit=memory_limit, reserve=reserve,
                partition=partition, costs=costs, profile=profile,
                assignment=assignment, shuffle=shuffle, journal=journal), *sweeps], files, progress)
    commands.tell(notes)
    return WhatIf(data)


def strategies() -> List[str]:
    """Returns the names of all strategies (docs/strategies.md)."""
    return commands.native().strategies()
