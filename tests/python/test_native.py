"""The planner in the Python package: plans with the bytes of the command line,
the numbers of its JSON, and errors that name the argument."""
import concurrent.futures
import json
import os
import pickle
import tempfile
import unittest
from unittest import mock

from native_package import (FLAGS, SEARCH, WORKLOADS, command, command_json,
                            pipeloom, planner, python, without_times)


class Plans(unittest.TestCase):
    def test_bytes_are_those_of_the_command(self):
        for job, batch, more, options in [
                ("dip-vlm-s", "mixed", [], {}),
                ("dip-t2v-s", "video", ["--steps", "2"], {"steps": 2}),
                ("qwen2.5-vl-7b", "image_text",
                 ["--strategy", "1f1b", "--replicas", "2"],
                 {"strategy": "1f1b", "replicas": 2}),
                ("llama3-8b", "text",
                 ["--memory-limit", "60GiB", "--microbatches", "8",
                  "--replicas", "1"],
                 {"memory_limit": "60GiB", "microbatches": 8, "replicas": 1}),
                ("qwen2.5-omni-7b", "mixed",
                 ["--assignment", "balanced", "--shuffle", "5", "--replicas",
                  "1", "--reserve", "0.05", "--partition", "dip"],
                 {"assignment": "balanced", "shuffle": 5, "replicas": 1,
                  "reserve": 0.05, "partition": "dip"})]:
            with self.subTest(job), tempfile.TemporaryDirectory() as folder:
                printed = command_json(
                    "plan", job, "--batch", batch, *FLAGS, *more, "--out",
                    os.path.join(folder, "cli.pb"))
                os.mkdir(os.path.join(folder, "python"))
                plan = pipeloom.plan(job, batch, **SEARCH, **options)
                written = plan.save(os.path.join(folder, "python", "cli.pb"))
                names = sorted(n for n in os.listdir(folder) if n != "python")
                self.assertEqual(sorted(map(os.path.basename, written)), names)
                for name in names:
                    with open(os.path.join(folder, name), "rb") as file, \
                            open(os.path.join(folder, "python", name),
                                 "rb") as mine:
                        self.assertEqual(file.read(), mine.read(), name)
                self.assertEqual(printed["mean_step_time_us"],
                                 plan.mean_step_time_us)
                for ours, its in zip(plan.steps, printed["steps"]):
                    figures = without_times(ours.data)
                    self.assertEqual(plan.strategy, its["strategy"])
                    self.assertEqual(
                        figures, {k: its[k] for k in figures})

    def test_plans_for_a_trainer_have_the_files_of_the_command(self):
        for trainer, job, batch, more, options in [
                ("torch", "llama3-8b", "text",
                 ["--steps", "2", "--replicas", "2"],
                 {"steps": 2, "replicas": 2}),
                ("torchtitan", "dip-vlm-s", "mixed", [], {}),
                ("megatron", "dip-vlm-s", "image_text", [], {}),
                ("megatron-stock", "llama3-8b", "text",
                 ["--replicas", "1"], {"replicas": 1}),
                ("deepspeed", "qwen2.5-vl-7b", "image_text",
                 ["--replicas", "1"], {"replicas": 1})]:
            with self.subTest(trainer), \
                    tempfile.TemporaryDirectory() as folder:
                printed = command_json(
                    "plan", job, "--batch", batch, "--for", trainer,
                    "--microbatches", "6", *FLAGS, *more, "--out",
                    os.path.join(folder, "cli.pb"))
                written = {}
                for name in os.listdir(folder):
                    path = os.path.join(folder, name)
                    with open(path, "rb") as file:
                        written[path] = file.read()
                    os.remove(path)
                plan = pipeloom.plan(job, batch, for_trainer=trainer,
                                     microbatches=6, **SEARCH, **options)
                self.assertEqual(
                    sorted(plan.save(os.path.join(folder, "cli.pb"))),
                    sorted(written))
                for path, content in written.items():
                    with open(path, "rb") as file:
                        self.assertEqual(file.read(), content, path)
                self.assertEqual(plan.for_trainer, printed["for"])
                files = plan.trainer_files_for(os.path.join(folder, "cli.pb"))
                self.assertEqual([*files.values()][-1], printed["launch"])
                self.assertEqual(
                    {n: t for n, t in files.items()},
                    {n: t.decode() for n, t in written.items()
                     if not n.endswith(".pb")})
                self.assertEqual(printed["mean_step_time_us"],
                                 plan.mean_step_time_us)
                again = pickle.loads(pickle.dumps(plan))
                self.assertEqual(again.trainer_files, plan.trainer_files)
                self.assertIn("-launch.", [*plan.trainer_files][-1])
                self.assertEqual([*plan.trainer_files.values()][-1],
                                 plan.launch_arguments)
                report = os.path.join(folder, "report.html")
                self.assertTrue(all(name.endswith(".html")
                                    for name in plan.save(report)))

    def test_a_comparison_keeps_to_what_a_trainer_executes(self):
        rows = pipeloom.compare(
            "qwen2.5-vl-7b", "image_text", for_trainer="deepspeed",
            strategies=["gpipe", "1f1b", "pipeloom"], microbatches=6, replicas=1,
            evaluations=20)
        self.assertRegex(rows["gpipe"]["error"], "--for deepspeed: .*twice")
        self.assertGreaterEqual(rows["1f1b"]["mean_step_time_us"],
                                rows["pipeloom"]["mean_step_time_us"])
        with self.assertRaisesRegex(ValueError, "for_trainer torch with static"):
            pipeloom.compare("llama3-8b", "text", for_trainer="torch",
                             static=True, evaluations=5)

    def test_a_trainer_names_what_it_cannot_execute(self):
        def plan(trainer, job="dip-vlm-s", **options):
            return pipeloom.plan(job, "mixed", for_trainer=trainer,
                                 evaluations=5, **options)

        for error, words, make in [
                (ValueError, "for_trainer.*megatronn.*torchtitan",
                 lambda: plan("megatronn")),
                (ValueError, "for_trainer torch with strategy 1f1b",
                 lambda: plan("torch", strategy="1f1b")),
                (ValueError, "for_trainer torch with robust",
                 lambda: plan("torch", robust=True)),
                (RuntimeError, "for_trainer deepspeed: .*chain",
                 lambda: plan("deepspeed", "qwen2.5-omni-7b")),
                (ValueError, "plan.csv.*trainer's file",
                 lambda: pipeloom.plan(
                     "llama3-8b", "text", for_trainer="torch", replicas=1,
                     evaluations=5).save("plan.csv"))]:
            with self.subTest(words), self.assertRaisesRegex(error, words):
                make()
        self.assertFalse(os.path.exists("plan.csv"))
        plain = pipeloom.plan("dip-vlm-s", "mixed", for_trainer="pipeloom",
                              **SEARCH)
        self.assertEqual(plain.to_bytes(),
                         pipeloom.plan("dip-vlm-s", "mixed",
                                       **SEARCH).to_bytes())
        self.assertEqual((plain.for_trainer, plain.trainer_files,
                          plain.launch_arguments), ("pipeloom", {}, ""))

    def test_a_job_of_python_values_has_the_bytes_of_its_file(self):
        model = pipeloom.Model.load("dip-vlm-s")
        job = pipeloom.Job(
            model, pipeloom.Cluster("h100-sxm", nodes=2), tp=4, pp=4,
            microbatches=8, microbatch_tokens=8192, name="mine",
            training={"microbatch_images": 48})
        self.assertEqual((job.num_gpus, job.pp, job.cluster),
                         (16, 4, "h100-sxm"))
        samples = [pipeloom.Sample(700 + 13 * i, images=((640, 480 + i),))
                   for i in range(200)]
        plan = pipeloom.plan(job, samples, **SEARCH)
        with tempfile.TemporaryDirectory() as folder:
            def path(name):
                return os.path.join(folder, name)
            with open(os.path.join(WORKLOADS, "clusters/h100-sxm.json"),
                      encoding="utf-8") as file:
                cluster = {**json.load(file), "num_nodes": 2}
            with open(path("job.json"), "w", encoding="utf-8") as file:
                json.dump({"name": "mine", "model": "dip-vlm-s",
                           "cluster_spec": cluster,
                           "parallel": {"tp": 4, "pp": 4},
                           "training": {"microbatches": 8,
                                        "microbatch_tokens": 8192,
                                        "microbatch_images": 48}}, file)
            with open(path("batch.jsonl"), "w", encoding="utf-8") as file:
                for sample in samples:
                    print(json.dumps({"text_tokens": sample.text_tokens,
                                      "images": sample.images}), file=file)
            command("plan", path("job.json"), "--batch", path("batch.jsonl"),
                    *FLAGS, "--out", path("plan.pb"))
            with open(path("plan.pb"), "rb") as file:
                self.assertEqual(file.read(), plan.to_bytes())
            again = pipeloom.plan(path("job.json"), path("batch.jsonl"),
                                  **SEARCH)
            self.assertEqual(again.to_bytes(), plan.to_bytes())

    def test_changes_are_those_of_set(self):
        job = pipeloom.Job.load("dip-vlm-s").with_changes(
            {"training.microbatches": 8, "cluster": "h100-sxm"})
        self.assertEqual((job.microbatches, job.cluster), (8, "h100-sxm"))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.txt")
            command("plan", "dip-vlm-s", "--batch", "mixed", *FLAGS, "--set",
                    "training.microbatches=8", "--set", "cluster=h100-sxm",
                    "--out", path)
            with open(path, encoding="utf-8") as file:
                self.assertEqual(
                    file.read(),
                    pipeloom.plan(job, "mixed", **SEARCH).slowest.to_text())

    def test_a_plan_is_data(self):
        plan = pipeloom.plan("dip-vlm-s", "mixed", **SEARCH).slowest
        tasks = plan.tasks()
        self.assertEqual({len(column) for column in tasks.values()},
                         {plan.num_tasks})
        self.assertEqual(set(map(int, tasks["rank"])), {0, 1, 2, 3})
        self.assertGreaterEqual(1000 * plan.step_time_us,
                                max(map(int, tasks["end_ns"])))
        again = planner.StepPlan.from_bytes(plan.to_bytes())
        self.assertEqual(again.to_bytes(), plan.to_bytes())
        self.assertEqual(again.step_time_us, plan.step_time_us)
        self.assertEqual(pickle.loads(pickle.dumps(plan)).to_text(),
                         plan.to_text())
        page = plan._repr_html_()
        self.assertTrue(page.startswith("<iframe srcdoc="))
        self.assertIn("Plan of dip-vlm-s", page)
        self.assertIn("<!doctype html>", plan.report().lower())
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan")
            for end, content in ((".pb", plan.to_bytes()),
                                 (".txt", plan.to_text().encode()),
                                 (".html", plan.report().encode())):
                plan.save(path + end)
                with open(path + end, "rb") as file:
                    self.assertEqual(file.read(), content)
        try:
            import pandas  # noqa: F401
        except ImportError:
            with self.assertRaisesRegex(ImportError, "pandas"):
                plan.to_pandas()
        else:
            self.assertEqual(len(plan.to_pandas()), plan.num_tasks)

    def test_workers_and_slow_ranks_are_those_of_the_command(self):
        plan = pipeloom.plan("dip-vlm-s", "mixed", workers=8,
                             slow_ranks={1: 1.5},
                             slow_links={(1, 2): "+5ms", (2, 1): 3}, **SEARCH)
        its = command_json("plan", "dip-vlm-s", "--batch", "mixed", *FLAGS,
                           "--workers", "8", "--slow", "1=1.5",
                           "--slow-link", "1-2=+5ms,2-1=3")
        self.assertEqual(plan.mean_step_time_us, its["mean_step_time_us"])

    def test_plans_do_not_depend_on_threads_of_python(self):
        def make(_):
            return pipeloom.plan("dip-vlm-s", "mixed", evaluations=10,
                                 threads=1).to_bytes()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            self.assertEqual(len(set(pool.map(make, range(8)))), 1)


class Questions(unittest.TestCase):
    def test_compare_has_the_numbers_of_the_command(self):
        mine = pipeloom.compare("dip-vlm-s", "mixed", steps=2,
                                strategies=["1f1b", "megatron", "pipeloom"],
                                **SEARCH)
        its = command_json("compare", "dip-vlm-s", "--batch", "mixed",
                           "--steps", "2", "--strategies",
                           "1f1b,megatron,pipeloom", *FLAGS)
        self.assertEqual(without_times(mine.data), without_times(its))
        self.assertEqual(mine.best, "pipeloom")
        self.assertEqual([line.split()[0] for line in str(mine).splitlines()],
                         ["strategy", "1f1b", "megatron", "pipeloom"])
        self.assertEqual(mine["1f1b"]["strategy"], "1f1b")

    def test_emulate_has_the_numbers_of_the_command(self):
        its = command_json("emulate", "dip-vlm-s", "--batch", "mixed", *FLAGS,
                           "--slow-rank", "1=1.5", "--sharing", "per-rank",
                           "--jitter", "0.05", "--samples", "20")
        mine = pipeloom.emulate("dip-vlm-s", "mixed", slow_ranks={1: 1.5},
                                sharing="per-rank", jitter=0.05,
                                jitter_samples=20, **SEARCH)
        self.assertEqual(without_times(mine.data), without_times(its))
        plan = pipeloom.plan("dip-vlm-s", "mixed", **SEARCH)
        slow = pipeloom.emulate(plan, slow_ranks={1: 1.5}, sharing="per-rank",
                                slow_links={(0, 1): 3.0})
        self.assertGreater(slow.step_time_us, plan.mean_step_time_us)
        self.assertEqual(list(slow.peak_bytes), slow.data["peak_bytes"])

    def test_whatif_has_the_numbers_of_the_command(self):
        its = command_json("whatif", "dip-vlm-s", "--batch", "mixed",
                           "--evaluations", "4", "--threads", "2", "--sweep",
                           "training.microbatches=8,12", "--sweep",
                           "cluster=h100-sxm,dip-h800-64")
        mine = pipeloom.whatif(
            "dip-vlm-s", "mixed", evaluations=4, threads=2,
            sweep={"training.microbatches": [8, 12],
                   "cluster": ["h100-sxm", "dip-h800-64"]})
        self.assertEqual(mine.data, its)
        self.assertEqual(len(mine.configurations), 5)

    def test_search_layout_has_the_numbers_of_the_command(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "partition.json")
            its = command_json("partition", "dip-vlm-s", "--batch", "mixed",
                               "--layouts", "--tp", "4", "--pp", "2",
                               "--tries", "4", "--threads", "2", "--out", path)
            mine = pipeloom.search_layout("dip-vlm-s", "mixed", tp=4, pp=2,
                                          tries=4, threads=2)
            self.assertEqual(mine.data,
                             {k: v for k, v in its.items() if k != "out"})
            with open(path, encoding="utf-8") as file:
                self.assertEqual(mine.partition, json.load(file))
            self.assertEqual((mine.best["tp"], mine.best["pp"]), (4, 2))
            plan = pipeloom.plan("dip-vlm-s", "mixed",
                                 partition=mine.partition, **SEARCH)
            command("plan", "dip-vlm-s", "--batch", "mixed", *FLAGS,
                    "--partition", path, "--replicas", "0", "--out",
                    os.path.join(folder, "plan.pb"))
            with open(os.path.join(folder, "plan.pb"), "rb") as file:
                self.assertEqual(file.read(), plan.to_bytes())


class Inputs(unittest.TestCase):
    def test_a_configuration_becomes_the_model_that_the_command_writes(self):
        config = {"model_type": "llama", "hidden_size": 1024,
                  "intermediate_size": 2816, "num_hidden_layers": 4,
                  "num_attention_heads": 16, "vocab_size": 32000}
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "config.json"), "w",
                      encoding="utf-8") as file:
                json.dump(config, file)
            path = os.path.join(folder, "model.json")
            its = command_json("model", folder, "--name", "small", "--out",
                               path)
            model = pipeloom.Model.from_pretrained(folder, name="small")
            with open(path, encoding="utf-8") as file:
                self.assertEqual(model.to_dict(), json.load(file))
            self.assertEqual(
                (model.name, model.parameters, model.architecture,
                 list(model.assumed)),
                ("small", its["parameters"], "llama", its["assumed"]))
            job = pipeloom.Job(model, "h100-sxm", pp=2, microbatches=4,
                               microbatch_tokens=4096)
            plan = pipeloom.plan(job, "text", evaluations=5)
            self.assertEqual(plan.slowest.num_ranks, 2)
            del config["hidden_size"]
            with open(os.path.join(folder, "config.json"), "w",
                      encoding="utf-8") as file:
                json.dump(config, file)
            with self.assertRaisesRegex(ValueError, "hidden_size"):
                pipeloom.Model.from_pretrained(folder)

    def test_a_downloaded_model_is_known_by_its_name(self):
        with tempfile.TemporaryDirectory() as home, mock.patch.dict(
                os.environ, HF_HUB_CACHE=os.path.join(home, "hub")):
            with self.assertRaisesRegex(ValueError, "maker/small.*config.json"):
                pipeloom.Model.from_pretrained("maker/small")
            folder = os.path.join(home, "hub", "models--maker--small")
            os.makedirs(os.path.join(folder, "refs"))
            os.makedirs(os.path.join(folder, "snapshots", "a1b2"))
            with open(os.path.join(folder, "refs", "main"), "w",
                      encoding="utf-8") as file:
                file.write("a1b2")
            with open(os.path.join(folder, "snapshots", "a1b2", "config.json"),
                      "w", encoding="utf-8") as file:
                json.dump({"model_type": "llama", "hidden_size": 1024,
                           "intermediate_size": 2816, "num_hidden_layers": 4,
                           "num_attention_heads": 16, "vocab_size": 32000},
                          file)
            model = pipeloom.Model.from_pretrained("maker/small")
        self.assertEqual((model.name, model.architecture), ("small", "llama"))

    def test_everything_that_ships_loads(self):
        for name in pipeloom.Model.shipped():
            self.assertGreater(pipeloom.Model.load(name).parameters, 0)
        for name in pipeloom.Cluster.shipped():
            cluster = pipeloom.Cluster(name)
            self.assertEqual(pipeloom.Cluster(cluster.to_dict()).to_dict(),
                             cluster.to_dict())
        for name in pipeloom.Job.shipped():
            self.assertEqual(pipeloom.Job.load(name).name, name)

    def test_bad_input_names_what_is_wrong(self):
        def job(**changes):
            given = {"microbatches": 4, "microbatch_tokens": 4096, **changes}
            return pipeloom.Job("llama3-8b", "h100-sxm", **given)

        def plan(**options):
            return pipeloom.plan("dip-vlm-s", "mixed", **options)

        model = pipeloom.Model.load("llama3-8b").to_dict()
        cases = [
            ("microbatches", lambda: job(microbatches=0)),
            ("microbatches", lambda: job(microbatches="many")),
            ("microbatch_tokens", lambda: job(microbatch_tokens=-1)),
            ("tp", lambda: job(tp=-1)),
            ("pp", lambda: job(pp=1000)),
            ("dp", lambda: job(dp=100000)),
            ("context_parallelism",
             lambda: job(parallel={"context_parallelism": "SPIRAL"})),
            ("framework", lambda: job(setup={"framework": "MINE"})),
            ("assignement", lambda: job(training={"assignement": "x"})),
            ("optimizer_sharding",
             lambda: job(training={"optimizer_sharding": "ZERO9"})),
            ("memory_reserve", lambda: job(training={"memory_reserve": 2})),
            ("fastest", lambda: pipeloom.plan(
                job(search={"schedule": "fastest"}), "text")),
            ("llama3-9b", lambda: pipeloom.Model.load("llama3-9b")),
            ("absent.json", lambda: pipeloom.Model.load("absent.json")),
            ("modules", lambda: pipeloom.Model({**model, "modules": []})),
            ("h100-pcie", lambda: pipeloom.Cluster("h100-pcie")),
            ("num_nodes", lambda: pipeloom.Cluster("h100-sxm", nodes=0)),
            ("gpus_per_node",
             lambda: pipeloom.Cluster("h100-sxm", gpus_per_node=-8)),
            ("latency_us", lambda: pipeloom.Cluster(
                "h100-sxm", inter_node={"latency_us": -1})),
            ("colour", lambda: pipeloom.Cluster("h100-sxm", colour="red")),
            ("dip-vlm-xs", lambda: pipeloom.plan("dip-vlm-xs", "mixed")),
            ("parallel.qp", lambda: pipeloom.Job.load("dip-vlm-s")
             .with_changes({"parallel.qp": 2})),
            ("nothing", lambda: pipeloom.plan("dip-vlm-s", "nothing")),
            ("samples", lambda: pipeloom.plan("dip-vlm-s", [])),
            ("pipeloom.metadata.read",
             lambda: pipeloom.plan("dip-vlm-s", "shard.tar")),
            ("samples[1]", lambda: pipeloom.plan(
                "dip-vlm-s", [{"text_tokens": 5}, {"text_tokens": -5}])),
            ("text_tokens", lambda: pipeloom.plan(
                "dip-vlm-s", [{"text_tokens": -5}])),
            ("images", lambda: pipeloom.plan(
                "dip-vlm-s", [{"images": [[640]]}])),
            ("steps", lambda: plan(steps=0)),
            ("evaluations", lambda: plan(evaluations=0)),
            ("deadline", lambda: plan(deadline="soon")),
            ("deadline", lambda: plan(deadline=-1)),
            ("memory_limit", lambda: plan(memory_limit="64 apples")),
            ("reserve", lambda: plan(reserve=1.5)),
            ("strategy", lambda: plan(strategy="pipelom")),
            ("replicas", lambda: plan(replicas=9)),
            ("threads", lambda: plan(threads=-2)),
            ("workers", lambda: plan(workers=257)),
            ("slow_ranks", lambda: plan(slow_ranks={9: 2})),
            ("slow_links", lambda: plan(slow_links={(0, 1): "5ms"})),
            ("costs", lambda: plan(costs="guess")),
            ("profile", lambda: plan(profile=os.path.join(
                WORKLOADS, "profiles", "a100-sxm.json"))),
            ("assignment", lambda: plan(assignment="fair")),
            ("partition", lambda: plan(partition="absent.json")),
            ("partition: module", lambda: plan(partition={
                "format": "pipeloom.partition", "num_ranks": 4,
                "stages": []})),
            ("attention_density", lambda: plan(attention_density=[2.0])),
            ("strategies", lambda: pipeloom.compare(
                "dip-vlm-s", "mixed", strategies=["best"])),
            ("sharing", lambda: pipeloom.emulate(
                "dip-vlm-s", "mixed", sharing="all")),
            ("samples", lambda: pipeloom.emulate("dip-vlm-s")),
            ("ask", lambda: pipeloom.whatif("dip-vlm-s", "mixed", ask="why")),
            ("sweep", lambda: pipeloom.whatif(
                "dip-vlm-s", "mixed", sweep={"training.colour": []})),
            ("gpus", lambda: pipeloom.search_layout(
                "dip-vlm-s", "mixed", gpus=-1)),
            ("plan", lambda: planner.StepPlan.from_bytes(b"no plan")),
        ]
        self.assertGreaterEqual(len(cases), 30)
        for name, call in cases:
            with self.subTest(name), self.assertRaises(ValueError) as caught:
                call()
            message = str(caught.exception)
            self.assertIn(name, message)
            # Neither an option of the command nor a temporary file.
            self.assertNotRegex(message, r"--|" + tempfile.gettempdir() +
                                r"/pipeloom")
        sample = pipeloom.Sample(5)
        for message, given, samples in [
                (r"samples\[1\]", "dip-vlm-s", [sample, 5]),
                ("a list of them", "dip-vlm-s", sample),
                (r"pipeloom\.Job\(", pipeloom.Cluster("h100-sxm"), [sample])]:
            with self.assertRaisesRegex(TypeError, message):
                pipeloom.plan(given, samples)

    def test_what_cannot_fit_is_a_runtime_error(self):
        with self.assertRaisesRegex(RuntimeError, "memory"):
            pipeloom.plan("dip-vlm-s", "mixed", memory_limit="1GiB", **SEARCH)
        with self.assertRaisesRegex(RuntimeError, "1f1b: .*memory"):
            pipeloom.compare("dip-vlm-s", "mixed", memory_limit="1GiB",
                             strategies=["1f1b"], **SEARCH)

    def test_messages_name_arguments_of_python(self):
        with planner.commands.Files() as files:
            for message, words in [
                    ("searched, once; --partition rule plans without",
                     "searched, once; partition='rule' plans without"),
                    ("searched for 2 s, once; --warm-up 0s plans without",
                     "searched for 2 s, once"),
                    ("less; `pipeloom partition tut --layouts` searches layouts",
                     "less; pipeloom.search_layout searches layouts"),
                    ("--for torch: no; with --microbatches 9 all have as many; "
                     "--for pipeloom plans without the limits",
                     "for_trainer torch: no; with microbatches=9 all have as "
                     "many; for_trainer='pipeloom' plans without the limits"),
                    ("times that `pipeloom run --learn` measured; --slow-link 3",
                     "times that `pipeloom run --learn` measured; "
                     "slow_links 3")]:
                self.assertEqual(files.clean(message), words)

    def test_notes_are_warnings(self):
        with self.assertWarnsRegex(planner.PlanningWarning,
                                   "short: samples make"):
            pipeloom.plan("dip-vlm-s", [pipeloom.Sample(500)] * 4,
                          evaluations=1)


if __name__ == "__main__":
    unittest.main()
