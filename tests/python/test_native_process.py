"""The planner in the Python package as a part of a process: no import of grpc,
Ctrl-C, threads, progress, and the examples of the documents."""
import array
import ast
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from native_package import (PYTHON, ROOT, START, pipeloom, python)


class Process(unittest.TestCase):
    def test_planning_imports_neither_grpc_nor_protobuf(self):
        out = python(
            "import sys\n"
            "pipeloom.plan('dip-vlm-s', 'mixed', evaluations=1)\n"
            "print([m for m in sys.modules if m.startswith(('grpc',\n"
            "      'google.protobuf', 'torch', 'pandas'))])\n")
        self.assertEqual(out.strip(), "[]")

    def test_ctrl_c_ends_a_call_long_before_its_deadline(self):
        calls = [
            "pipeloom.plan('dip-vlm-s', 'mixed', deadline=600)",
            "pipeloom.whatif('dip-vlm-s', 'mixed', deadline=600, sweep={"
            "'training.microbatches': [8, 16]})",
            "pipeloom.compare('dip-vlm-s', 'mixed', deadline=600)"]
        for call in calls:
            process = subprocess.Popen(
                [sys.executable, "-c", START + "import signal\n"
                 "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
                 "pipeloom.planner; print('go', flush=True)\n"
                 f"try: {call}\n"
                 "except KeyboardInterrupt: print('interrupted', flush=True)\n"],
                stdout=subprocess.PIPE, text=True)
            with process:
                self.assertEqual(process.stdout.readline(), "go\n")
                time.sleep(1.5)
                begin = time.monotonic()
                process.send_signal(signal.SIGINT)
                line = process.stdout.readline()
                took = time.monotonic() - begin
                process.communicate(timeout=120)
            self.assertEqual((line, process.returncode),
                             ("interrupted\n", 0), call)
            self.assertLess(took, 60, call)

    def test_other_threads_run_while_the_planner_works(self):
        done = threading.Event()
        turns = 0

        failures = []

        def work():
            try:
                pipeloom.plan("dip-vlm-s", "mixed", deadline=0.5)
            except Exception as error:
                failures.append(error)
            finally:
                done.set()

        thread = threading.Thread(target=work)
        thread.start()
        while not done.is_set():
            turns += 1
            time.sleep(0.005)
        thread.join()
        self.assertEqual(failures, [])
        self.assertGreater(turns, 10)

    def test_progress_is_told_and_may_end_the_call(self):
        lines = []
        pipeloom.plan("dip-vlm-s", "mixed", deadline=1.0,
                      progress=lines.append)
        self.assertTrue(lines)
        self.assertIn("planning", lines[0])

        def stop(line):
            raise InterruptedError(line)

        begin = time.monotonic()
        with self.assertRaises(InterruptedError):
            pipeloom.plan("dip-vlm-s", "mixed", deadline=60, progress=stop)
        self.assertLess(time.monotonic() - begin, 20)

    def test_numbers_need_no_numpy(self):
        out = python(
            "import sys; sys.modules['numpy'] = None\n"
            "plan = pipeloom.plan('dip-vlm-s', 'mixed', evaluations=1)\n"
            "print(type(plan.slowest.tasks()['rank']).__name__)\n")
        self.assertEqual(out.strip(), array.array.__name__)

    def test_the_example_of_the_readme_runs(self):
        with open(os.path.join(PYTHON, "README.md"), encoding="utf-8") as file:
            blocks = re.findall(r"```python\n(.*?)```", file.read(), re.DOTALL)
        example = next(b for b in blocks if "pipeloom.plan(" in b)
        with tempfile.TemporaryDirectory() as folder:
            out = python(example, cwd=folder)
        self.assertIn("dip-vlm-s", out)

    def test_the_ten_lines_of_the_tutorial_run(self):
        path = os.path.join(ROOT, "docs", "tutorial.md")
        with open(path, encoding="utf-8") as file:
            blocks = dict(re.findall(r"```\w+ file=(\S+)\n(.*?)```",
                                     file.read(), re.DOTALL))
        names = ("make_shard.py", "first_plan.py")
        lines = [node for name in names
                 for node in ast.walk(ast.parse(blocks[name]))
                 if isinstance(node, ast.stmt)
                 and not isinstance(node, ast.Import)]
        self.assertLessEqual(len(lines), 10)
        with tempfile.TemporaryDirectory() as folder:
            folder = os.path.join(folder, "qwen")
            os.mkdir(folder)
            with open(os.path.join(folder, "config.json"), "w",
                      encoding="utf-8") as file:
                file.write(blocks["config.json"])
            for name in names:
                out = python(blocks[name], cwd=folder)
            sizes = list(pipeloom.metadata.read(
                os.path.join(folder, "shard.tar")))
            with open(os.path.join(folder, "report.html"),
                      encoding="utf-8") as file:
                page = file.read()
            model = pipeloom.Model.from_pretrained(folder)
        self.assertEqual(model.parameters, 8292166656)
        self.assertEqual((len(sizes), sizes[0].images), (400, ((300, 768),)))
        job = pipeloom.Job(model, "h100-sxm", tp=2, pp=4, microbatches=16,
                           microbatch_tokens=8192)
        plan = pipeloom.plan(job, sizes, evaluations=200)
        self.assertEqual(out, f"{plan}\n")
        self.assertRegex(out, r"^qwen, strategy pipeloom\nstep .*memory\n"
                              r"0 .* s .* %  +\d+\.\d\d GiB\n$")
        self.assertIn("Plan of qwen", page)
        self.assertIn("<!doctype html>", page.lower())


if __name__ == "__main__":
    unittest.main()
