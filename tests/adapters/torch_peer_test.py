"""torch.distributed.pipelining next to our adapters: the same lowering token for
token, the same verdicts on tables, and our files run by torch's own runtime
with the gradients of one process. Run by scripts/torch_peer.sh.
PIPELOOM_TRAINER_PLANS=50 for more plans of `plan --for torch`."""
import ast
import contextlib
import io
import os
import random
import re
import socket
import subprocess
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules as sched

TABLES = os.environ.get("PIPELOOM_TORCH_TABLES", "")
WIDTH = 8
RANDOM = ("1f1b-random", "interleaved-random", "zb-h1-random", "zb-v-random")
# torch 2.15 wants a wait for every send; older ones do not know them.
HAS_WAITS = hasattr(sched, "_add_wait_send")
HAS_PAIRS = hasattr(sched, "OVERLAP_F_B")


class Tool:
    """The torch_tables program: a request a line, an answer a line."""

    def __init__(self):
        self._process = subprocess.Popen(
            [TABLES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *fields):
        """(True, fields of the answer), or (False, [why])."""
        self._process.stdin.write("\t".join(map(str, fields)) + "\n")
        self._process.stdin.flush()
        verdict, *rest = self._process.stdout.readline().rstrip("\n").split(
            "\t")
        return verdict == "ok", rest

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def actions_of(table, idle=False):
    """Rows of text as torch's actions, without idle cells or with them."""
    rows = {}
    for rank, row in enumerate(table.split("|")):
        cells = [sched._Action.from_str(c) for c in row.split(",")]
        rows[rank] = [c for c in cells if idle or c is not None]
    return rows


def text_of(actions):
    return "|".join(",".join("" if a is None else str(a)
                             for a in actions[r]) for r in sorted(actions))


def parts(action):
    return getattr(action, "sub_actions", None) or (action,)


def shape_of(actions):
    """Stages, microbatches, and the rank of each stage."""
    owner, count = {}, 0
    for rank, row in actions.items():
        for action in row:
            for a in parts(action):
                owner.setdefault(a.stage_index, rank)
                count = max(count, (a.microbatch_index or 0) + 1)
    return len(owner), count, owner


def lowered_by_torch(table, waits=False):
    stages, _, owner = shape_of(actions_of(table))
    rows = sched._add_send_recv(actions_of(table, True), lambda s: owner[s],
                                stages)
    return text_of(sched._add_wait_send(rows) if waits else rows)


def without_waits(table):
    return "|".join(",".join(c for c in row.split(",") if "WAIT" not in c)
                    for row in table.split("|"))


def torch_refuses(table, num_stages, count):
    """Why torch's own checks refuse a table with transfers; None if not."""
    try:
        actions = actions_of(table)
        with contextlib.redirect_stdout(io.StringIO()):
            owner = sched._validate_schedule(
                actions, len(actions), num_stages, count)
            if owner is None:  # 2.6 returns nothing.
                owner = shape_of(actions)[2]
            sched._simulate_comms_compute(
                actions, lambda s: owner[s], num_stages)
            if HAS_WAITS and "WAIT" in table:
                sched._validate_send_waits(actions)
    except (AssertionError, IndexError, KeyError, RuntimeError,
            ValueError) as error:
        return repr(error)[:200]
    return None


def messages_match(table):
    """Whether both ends of each pair of ranks list the same tensors in the same
    order: torch matches them by that alone."""
    actions = actions_of(table)
    _, _, owner = shape_of(actions)
    sent, received = {}, {}
    for rank, row in actions.items():
        for a in row:
            kind = a.computation_type.value
            if kind not in ("SEND_F", "RECV_F", "SEND_B", "RECV_B"):
                continue
            step = 1 if kind.endswith("F") else -1
            if kind.startswith("SEND"):
                key = (rank, owner.get(a.stage_index + step))
                sent.setdefault(key, []).append(
                    (kind[-1], a.stage_index, a.microbatch_index))
            else:
                key = (owner.get(a.stage_index - step), rank)
                received.setdefault(key, []).append(
                    (kind[-1], a.stage_index - step, a.microbatch_index))
    return sent == received


def torch_schedules():
    """Orders that torch's schedule classes make."""
    try:
        from torch.distributed.pipelining import _schedule_visualizer as view
    except ImportError:
        return
    for name, chunks in (("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2),
                         ("Interleaved1F1B", 3), ("LoopedBFS", 2),
                         ("InterleavedZeroBubble", 2), ("ZBVZeroBubble", 2),
                         ("DualPipeV", 2)):
        for p in (2, 4, 8):
            for count in (2 * p, 3 * p):
                try:
                    rows = view.get_schedule_ops(name, p, count, chunks)
                except (ValueError, AssertionError):
                    continue
                rows = {r: [a for a in row if a is None or a.is_compute_op]
                        for r, row in enumerate(rows)}
                stages = chunks * p
                try:  # The picture of 1F1B in 2.15 lacks a forward.
                    sched._validate_schedule(rows, p, stages, count)
                except (AssertionError, KeyError):
                    continue
                yield f"{name} p {p} v {chunks} m {count}", text_of(rows)


class TablesTest(unittest.TestCase):

    def setUp(self):
        self.tool = Tool()
        self.addCleanup(self.tool.close)

    def our_plans(self):
        ok, names = self.tool.ask("names")
        self.assertTrue(ok)
        for name in list(names) + list(RANDOM):
            for p in (2, 3, 4, 8):
                for count in (2 * p, 2 * p + 3):
                    ok, tables = self.tool.ask("plan", name, p, count, p)
                    self.assertTrue(ok, f"{name} {p} {count}: {tables}")
                    yield f"{name} p {p} m {count}", tables

    def compare(self, title, table):
        ok, ours = self.tool.ask("lower", table)
        self.assertTrue(ok, f"{title}: {ours}")
        self.assertEqual(ours[0], lowered_by_torch(table), title)
        if HAS_WAITS:
            ok, ours = self.tool.ask("waits", table)
            self.assertTrue(ok, f"{title}: {ours}")
            self.assertEqual(ours[0], lowered_by_torch(table, True), title)
        if "OVERLAP" not in table:
            stages, count, _ = shape_of(actions_of(table))
            self.assertIsNone(torch_refuses(ours[0], stages, count), title)
        ok, why = self.tool.ask("check", ours[0])
        self.assertTrue(ok, f"{title}: {why}")

    def test_lowering_equals_torchs_token_for_token(self):
        compared = 0
        for title, (passes, _) in self.our_plans():
            if "OVERLAP" in passes and not HAS_PAIRS:
                continue
            self.compare(title, passes)
            compared += 1
        for title, passes in torch_schedules():
            self.compare(title, passes)
            compared += 1
        print(f"{compared} tables: lowered as torch {torch.__version__} does")
        self.assertGreater(compared, 60)

    def test_torch_accepts_what_is_exported_with_transfers(self):
        for title, (_, transfers) in self.our_plans():
            if not HAS_WAITS:
                transfers = without_waits(transfers)
            stages, count, _ = shape_of(actions_of(transfers))
            self.assertIsNone(torch_refuses(transfers, stages, count), title)
            self.assertTrue(messages_match(transfers), title)

    def mutated(self, rng, table):
        rows = [row.split(",") for row in table.split("|")]
        row = rows[rng.randrange(len(rows))]
        i, j = rng.randrange(len(row) - 1), rng.randrange(len(row))
        kind = rng.randrange(4)
        if kind == 0:
            row[i], row[i + 1] = row[i + 1], row[i]
        elif kind == 1:
            row[i], row[j] = row[j], row[i]
        elif kind == 2:
            del row[i]
        else:
            row.insert(j, row[i])
        return "|".join(",".join(r) for r in rows)

    def test_what_torch_refuses_or_corrupts_is_refused(self):
        """Tries 4000 mutated tables: none is accepted that torch's checks
        refuse, and none whose messages do not match, which torch's checks let
        pass."""
        tables = []
        for title, (_, transfers) in self.our_plans():
            if " p 8" not in title:
                tables.append(transfers if HAS_WAITS
                              else without_waits(transfers))
        counts = {"accepted": 0, "refused by both": 0, "only by us": 0,
                  "silent in torch": 0}
        for seed in range(4000):
            rng = random.Random(seed)
            table = tables[seed % len(tables)]
            stages, count, _ = shape_of(actions_of(table))
            changed = self.mutated(rng, table)
            ok, why = self.tool.ask("check", changed)
            theirs = torch_refuses(changed, stages, count)
            match = messages_match(changed)
            if ok:
                counts["accepted"] += 1
                # A table that lost its last microbatch or stage is a smaller
                # one in our eyes; torch was told the number.
                self.assertIsNone(theirs, f"seed {seed}: {changed}")
                self.assertTrue(match, f"seed {seed}: {changed}")
            elif theirs is not None:
                counts["refused by both"] += 1
            else:
                counts["only by us"] += 1
                counts["silent in torch"] += not match
        print(counts)
        self.assertGreater(counts["accepted"], 50)
        self.assertGreater(counts["refused by both"], 500)
        self.assertGreater(counts["silent in torch"], 20)


class Part(nn.Module):
    def __init__(self, index):
        super().__init__()
        torch.manual_seed(index)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.tanh(self.linear(x))


def loss_of(output, target):
    return ((output - target) ** 2).mean()


def batch_of(count):
    generator = torch.Generator().manual_seed(count)
    return (torch.randn(2 * count, WIDTH, generator=generator),
            torch.randn(2 * count, WIDTH, generator=generator))


def serial(stages, count):
    """Gradients of one process, by stage, and the loss."""
    layers = [Part(i) for i in range(stages)]
    inputs, targets = batch_of(count)
    total = 0.0
    for x, y in zip(inputs.chunk(count), targets.chunk(count)):
        for layer in layers:
            x = layer(x)
        loss = loss_of(x, y)
        loss.backward()
        total += float(loss.detach())
    return layers, total


def load(runtime, actions, form):
    """Gives the runtime a table: a file of `plan --for`, or actions."""
    if form == "file":
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            file.write(actions)
            file.flush()
            runtime._load_csv(file.name)
        return
    prepare = getattr(runtime, "_prepare_schedule_with_comms", None) or (
        runtime._load_actions)
    prepare(actions, form)


def run_table(rank, world, table, form):
    """The largest difference in a gradient or loss of this rank's stages, the
    table carried out by torch's runtime."""
    actions = actions_of(table)
    num_stages, count, owner = shape_of(actions)
    stages = [
        pipelining.PipelineStage(Part(i), i, num_stages, torch.device("cpu"))
        for i in range(num_stages) if owner[i] == rank]
    extra = {}
    if hasattr(sched.PipelineScheduleMulti, "_load_actions"):  # 2.6.
        extra["stage_index_to_group_rank"] = owner
    runtime = sched._PipelineScheduleRuntime(stages, count, loss_fn=loss_of,
                                             **extra)
    runtime.scale_grads = False
    runtime._scale_grads = False
    load(runtime, table.replace("|", "\n") + "\n" if form == "file" else actions,
         form)
    inputs, targets = batch_of(count)
    losses = []
    kwargs = {}
    if owner[num_stages - 1] == rank:
        kwargs = {"target": targets, "losses": losses}
    if owner[0] == rank:
        runtime.step(inputs, **kwargs)
    else:
        runtime.step(**kwargs)
    layers, total = serial(num_stages, count)
    worst = 0.0
    for stage in stages:
        for mine, theirs in zip(stage.submod.parameters(),
                                layers[stage.stage_index].parameters()):
            worst = max(worst, float((mine.grad - theirs.grad).abs().max()))
    if losses:
        worst = max(worst, abs(float(sum(x.detach() for x in losses)) - total))
    dist.barrier()
    return worst


def worker(rank, world, port, cases, queue):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      USE_LIBUV="0")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    try:
        for title, table, form in cases:
            queue.put((title, rank, run_table(rank, world, table, form)))
        queue.put(("", rank, None))
    except Exception as error:  # pylint: disable=broad-except
        queue.put((title, rank, repr(error)))
        raise
    finally:
        dist.destroy_process_group()


def run_world(world, cases):
    """Returns the largest difference on any rank, for each case."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=worker,
                                 args=(r, world, port, cases, queue))
                 for r in range(world)]
    for p in processes:
        p.start()
    worst, done = {}, 0
    try:
        while done < world:
            title, rank, value = queue.get(timeout=120)
            if value is None:
                done += 1
            elif isinstance(value, str):
                raise AssertionError(f"{title}, rank {rank}: {value}")
            else:
                worst[title] = max(worst.get(title, 0.0), value)
    finally:
        for p in processes:
            if done < world:
                p.terminate()
            p.join(30)
    return worst


class RuntimeTest(unittest.TestCase):
    """Every strategy's file run by torch's runtime over gloo."""

    def cases(self, world):
        tool = Tool()
        self.addCleanup(tool.close)
        _, names = tool.ask("names")
        for name in list(names) + list(RANDOM):
            ok, tables = tool.ask("plan", name, world, 2 * world + 1, world)
            self.assertTrue(ok, tables)
            passes, transfers = tables
            if "OVERLAP" not in passes or HAS_PAIRS:
                yield f"{name} passes", passes, "compute_only"
            if not HAS_WAITS:
                transfers = without_waits(transfers)
            yield f"{name} transfers", transfers, "compute_comms"

    def check(self, world):
        worst = run_world(world, list(self.cases(world)))
        print(f"{world} processes: {len(worst)} files, largest difference "
              f"{max(worst.values()):.1e}")
        self.assertGreater(len(worst), 20)
        for title, value in worst.items():
            self.assertLess(value, 1e-6, title)

    def test_gradients_are_those_of_one_process_2_ranks(self):
        self.check(2)

    def test_gradients_are_those_of_one_process_3_ranks(self):
        self.check(3)

    def test_gradients_are_those_of_one_process_4_ranks(self):
        self.check(4)

    def test_a_swap_that_torch_runs_to_wrong_gradients_is_refused(self):
        tool = Tool()
        self.addCleanup(tool.close)
        # Two receives that stand together change places.
        for seed in range(100):
            _, (_, table) = tool.ask("plan", "interleaved-random", 2, 4, seed)
            changed = re.sub(r"(\d+RECV_F\d+),(\d+RECV_F\d+),", r"\2,\1,",
                             table, count=1)
            if changed != table:
                break
        if not HAS_WAITS:
            changed = without_waits(changed)
        ok, why = tool.ask("check", changed)
        self.assertFalse(ok)
        self.assertIn("meets receive of the output", why[0])
        self.assertIsNone(torch_refuses(changed, 4, 4))
        worst = run_world(2, [("swapped", changed, "compute_comms")])
        print(f"swapped gradients: torch runs them to a difference of "
              f"{worst['swapped']:.2f}")
        self.assertGreater(worst["swapped"], 1e-3)


class TrainerPlansTest(unittest.TestCase):
    """Plans of `plan --for torch` and `--for torchtitan`, of random jobs: the
    file that is written, loaded and run by torch's runtime, with the stages
    that the launch arguments give each rank."""

    def cases(self, trainer, count):
        """Cases by number of ranks; a job that the trainer cannot run is
        refused, and counts as none."""
        tool = Tool()
        self.addCleanup(tool.close)
        cases, found, refused = {}, 0, 0
        for seed in range(4 * count):
            if found == count:
                break
            ok, answer = tool.ask("trainer", trainer, seed)
            if not ok:
                refused += 1
                continue
            table, launch = answer[0].rstrip("|"), answer[1]
            stages, microbatches, owner = shape_of(actions_of(table))
            lines = launch.split("|")
            if trainer == "torch":
                said = dict(line.split(" = ", 1) for line in lines
                            if line.startswith(("STAGES", "NUM")))
                ranks = ast.literal_eval(said["STAGES_OF_RANK"])
                self.assertEqual(
                    {s: r for r, row in enumerate(ranks) for s in row}, owner)
                self.assertEqual(int(said["NUM_MICROBATCHES"]), microbatches)
            self.assertEqual(sorted(owner), list(range(stages)))
            world = len(table.split("|"))
            cases.setdefault(world, []).append((f"seed {seed}", table, "file"))
            found += 1
        self.assertEqual(found, count, f"{refused} refused")
        return cases

    def check(self, trainer):
        count = int(os.environ.get("PIPELOOM_TRAINER_PLANS", "6"))
        cases = self.cases(trainer, count)
        for world, some in sorted(cases.items()):
            worst = run_world(world, some)
            print(f"--for {trainer}, {world} processes: {len(worst)} plans, "
                  f"largest difference {max(worst.values()):.1e}")
            self.assertEqual(len(worst), len(some))
            for title, value in worst.items():
                self.assertLess(value, 1e-6, title)

    def test_plans_for_torch_run_with_the_gradients_of_one_process(self):
        self.check("torch")


if __name__ == "__main__":
    if not TABLES:
        print("skipped: PIPELOOM_TORCH_TABLES names no program")
    else:
        unittest.main(verbosity=1)
