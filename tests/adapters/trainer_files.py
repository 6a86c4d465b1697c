"""Plans of random jobs for a trainer, made by `pipeloom plan --for` and read
from the files that it wrote, for tests that run them in the trainer's own
runtime. PIPELOOM_TRAINER_PLANS is their number."""
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path[:0] = [os.path.join(ROOT, "python")]

from pipeloom import plan as plans  # noqa: E402

TABLES = os.environ.get("PIPELOOM_TORCH_TABLES", "")
BINARY = os.environ.get("PIPELOOM_BINARY", "")
MISSING = ("" if TABLES and BINARY else
           "skipped: PIPELOOM_TORCH_TABLES and PIPELOOM_BINARY name no "
           "programs")


def num_plans():
    return int(os.environ.get("PIPELOOM_TRAINER_PLANS", "6"))


def result_line(trainer, plans, worst):
    ranks = plans[0].ranks
    return (f"--for {trainer}, {ranks} processes: {len(plans)} plans, "
            f"{sum(p.recomputes for p in plans)} with recomputation, "
            f"{sum(p.is_split for p in plans)} with weight gradients apart, "
            f"largest difference {max(worst.values()):.1e}")


@dataclasses.dataclass
class Planned:
    """The files that `--out FOLDER/plan.pb` wrote."""
    title: str
    plan: plans.Plan
    files: dict  # Texts by extension, and "launch".
    peaks: list  # Bytes, by rank.

    def __str__(self):
        return self.title

    @property
    def ranks(self):
        return self.plan.num_ranks

    @property
    def recomputes(self):
        """Whether the launch arguments set recomputation."""
        found = re.search(r"^--recompute-|^ACTIVATION_CHECKPOINT_INTERVAL = "
                          r"[1-9]|^RECOMPUTE = True", self.files["launch"], re.MULTILINE)
        return found is not None

    @property
    def is_split(self):
        """Whether weight gradients run apart from backwards."""
        return any(t.kind == "W" for t in self.plan.tasks.values())

    def stage_ranks(self):
        """The rank of each stage, by the comments of the launch arguments, and
        its layers as (module, first, last)."""
        stages = []
        for line in self.files["launch"].splitlines():
            found = re.fullmatch(r"# stage (\d+): rank (\d+), (.*)", line)
            if not found:
                continue
            assert int(found[1]) == len(stages), line
            layers = [re.fullmatch(r"(\S+) layers (\d+)-(\d+)", part)
                      for part in found[3].split(", ")]
            stages.append((int(found[2]), [(m[1], int(m[2]), int(m[3]))
                                           for m in layers]))
        return stages

    def python_values(self):
        """The launch arguments that are lines of Python."""
        values = {}
        exec(self.files["launch"], {}, values)  # pylint: disable=exec-used
        return values


def _read(folder):
    files = {}
    for name in os.listdir(folder):
        if name.startswith("plan-launch."):
            key = "launch"
        elif name.startswith("plan.") and name != "plan.pb":
            key = name[len("plan."):]
        else:
            continue
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            files[key] = file.read()
    return files


class RandomJobs:
    """The random jobs of tests/adapters/trainer_plans.h as files."""

    def __init__(self):
        self._process = subprocess.Popen(
            [TABLES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._folder = tempfile.TemporaryDirectory()

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()

    def _job(self, seed):
        self._process.stdin.write(f"job\t{seed}\n")
        self._process.stdin.flush()
        verdict, *files = self._process.stdout.readline().rstrip("\n").split(
            "\t")
        assert verdict == "ok", files
        paths = [os.path.join(self._folder.name, name)
                 for name in ("job.json", "batch.jsonl")]
        for path, text in zip(paths, files):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace("|", "\n"))
        return paths

    def plan(self, trainer, seed, *more):
        """Returns what the command wrote, or why the trainer cannot run the
        job."""
        job, batch = self._job(seed)
        with tempfile.TemporaryDirectory() as out:
            done = subprocess.run(
                [BINARY, "plan", job, "--batch", batch, "--for", trainer,
                 "--replicas", "1", "--evaluations", "20", "--format", "json",
                 "--out", os.path.join(out, "plan.pb"), *more],
                capture_output=True, text=True, check=False)
            if done.returncode != 0:
                assert done.returncode == 1, (seed, done.stderr)
                return done.stderr
            return Planned(f"seed {seed}",
                           plans.read_plan(os.path.join(out, "plan.pb")),
                           _read(out),
                           json.loads(done.stdout)["steps"][0]["peak_bytes"])

    def plan_tight(self, trainer, seed, planned):
        """Returns the job's plan in half the memory that `planned` takes for
        activations, or `planned` if that is too little."""
        static = [planned.plan.memory[r].static for r in range(planned.ranks)]
        limit = (max(static) + max(planned.peaks)) // 2
        tight = self.plan(trainer, seed, "--memory-limit", str(limit))
        return planned if isinstance(tight, str) else tight

    def plans(self, trainer, count, least_ranks=1):
        """Returns the first `count` plans on `least_ranks` ranks or more, and
        those on fewer that were met, by number of ranks, every second in
        tight memory, and how many jobs were refused before them."""
        by_ranks, found, refused = {}, 0, 0
        for seed in range(4 * count):
            if found == count:
                break
            planned = self.plan(trainer, seed)
            if isinstance(planned, str):
                assert "--for pipeloom" in planned or "parallel.pp" in planned
                refused += 1
                continue
            if found % 2 == 1:
                planned = self.plan_tight(trainer, seed, planned)
            by_ranks.setdefault(planned.ranks, []).append(planned)
            found += planned.ranks >= least_ranks
        assert found == count, f"{found} plans, {refused} refused"
        return by_ranks, refused
