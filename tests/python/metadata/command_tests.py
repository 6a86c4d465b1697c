"""Several processes, and the command: its output, errors and interruption."""
import json
import os
import resource
import signal
import subprocess
import sys
import time
import unittest

import media_files as mf
from metadata_folder import BINARY, ROOT, Folder, clip, run
from pipeloom import Sample, metadata
from pipeloom.metadata import BrokenFileError, MetadataError


class WorkersTest(Folder):

    def test_the_result_is_the_same_for_any_number_of_workers(self):
        expected = self.shards(7, 40)
        for workers in (1, 2, 5):
            self.assertEqual(self.read(workers=workers), expected)
        drawn = self.read(sample=50, seed=3)
        self.assertEqual(len(set(drawn)), 50)
        self.assertEqual(drawn, [s for s in expected if s in drawn])
        self.assertEqual(self.read(sample=50, seed=3, workers=4), drawn)
        self.assertNotEqual(self.read(sample=50, seed=4), drawn)

    def test_the_first_error_in_order_is_reported_by_any_number(self):
        self.shards(6, 20, broken=(47, 90))
        for workers in (1, 4):
            with self.assertRaisesRegex(BrokenFileError, "000047.jpg"):
                self.read(workers=workers)

    def test_a_sample_is_drawn_evenly_from_all_shards(self):
        self.shards(4, 50)
        hits = [0] * 200
        for seed in range(20):
            for s in self.read(sample=20, seed=seed):
                hits[s.images[0][0] - 100] += 1
        by_shard = [sum(hits[i:i + 50]) for i in range(0, 200, 50)]
        self.assertEqual(sum(by_shard), 400)
        # Hypergeometric: 100 expected, standard deviation 8.
        self.assertTrue(all(abs(n - 100) < 40 for n in by_shard), by_shard)


class CommandTest(Folder):

    def out(self):
        with open(self.path("out.jsonl"), encoding="utf-8") as file:
            return file.read()

    def command(self, *arguments):
        return run(self.path("shard-*.tar"), "-o", self.path("out.jsonl"),
                   *arguments)

    @unittest.skipUnless(BINARY, "no pipeloom program")
    def test_the_program_reads_what_is_written(self):
        self.shards(2, 60)
        mf.shard(self.path("shard-100.tar"), [
            ("1.mp4", mf.mp4((640, 360), 100, 25)), ("1.wav", mf.wav(3.2)),
            ("1.txt", b"abcd"), ("2.png", mf.png(300, 200))])
        code, out, err = self.command()
        self.assertEqual(code, 0, err)
        self.assertIn("122 samples, written to", out)
        found = subprocess.run([BINARY, "validate", self.path("out.jsonl")],
                               capture_output=True, text=True, check=True)
        self.assertIn("OK, batch of 122 samples", found.stdout)
        self.assertEqual(found.stderr, "")
        planned = subprocess.run(
            [BINARY, "plan", "dip-vlm-s", "--batch", self.path("out.jsonl"),
             "--evaluations", "5", "--format", "json"],
            capture_output=True, text=True, check=True)
        self.assertGreater(
            json.loads(planned.stdout)["mean_step_time_us"], 0)
        self.assertNotIn("not used", planned.stderr)
        self.assertEqual(self.read("out.jsonl")[120:], [
            Sample(1, (), (clip(100, 640, 360, 4.0),), (3.2,)),
            Sample(0, ((300, 200),))])

    def test_the_summary_counts_exactly(self):
        self.shards(2, 50, broken=(7,))
        code, out, err = self.command("--skip-broken", "--format", "json",
                                      "--workers", "2")
        self.assertEqual(code, 0, err)
        found = json.loads(out)
        self.assertEqual(found["samples"], 99)
        self.assertEqual(found["text"]["counting"], "estimate")
        width = found["image_width_px"]
        self.assertEqual((width["min"], width["p50"], width["max"]),
                         (100, 150, 199))
        self.assertEqual(sum(r["count"] for r in width["histogram"]), 99)
        self.assertEqual(found["skipped"]["count"], 1)
        self.assertIn("000007.jpg", found["skipped"]["files"][0])
        self.assertEqual(len(self.out().splitlines()), 99)
        self.assertEqual(os.listdir(self.folder).count("out.jsonl.partial"), 0)

    def test_broken_files_are_refused_with_a_remedy(self):
        self.shards(1, 5, broken=(3,))
        code, out, err = self.command()
        self.assertEqual((code, out), (1, ""))
        self.assertRegex(err, "shard-000.tar: 000003.jpg: .*--skip-broken")
        self.assertEqual(os.listdir(self.folder), ["shard-000.tar"])

    def test_a_run_that_failed_goes_on_with_skip_broken(self):
        expected = self.shards(3, 300, broken=(700,))
        code, _, err = self.command()
        self.assertEqual(code, 1)
        self.assertRegex(err, "000700.jpg(.|\n)* samples are kept: --resume")
        self.assertEqual(self.command("--skip-broken")[0], 1)
        code, out, err = self.command("--skip-broken", "--resume", "--format",
                                      "json")
        self.assertEqual(code, 0, err)
        found = json.loads(out)
        self.assertEqual((found["samples"], found["skipped"]["count"]),
                         (899, 1))
        self.assertEqual(self.read("out.jsonl"), expected)

    def test_misuse_gives_code_2(self):
        for arguments in ((), ("x", "--sample", "0"), ("x", "--resume"),
                          ("x", "--kind", "y"), ("x", "--nothing"),
                          ("x", "--workers", "-1"), ("x", "-o", "-"),
                          ("x", "-o", "y", "--resume", "--force"),
                          ("x", "--bytes-per-token", "0")):
            code, out, err = run(*arguments)
            self.assertEqual((code, out), (2, ""), (arguments, err))
        self.assertEqual(run("--help")[0], 0)
        code, _, err = run(self.path("no.tar"))
        self.assertEqual(code, 1)
        self.assertIn("no such file", err)

    def interrupted(self, stop, after, *arguments):
        """Starts a command, stops it by a signal once `after` bytes are
        written, and returns its code, stderr and the seconds it took to end.
        Begins anew, where that is possible, if the command ended first."""
        partial = self.path("out.jsonl.partial")
        for _ in range(30):
            process = subprocess.Popen(
                [sys.executable, "-m", "pipeloom.metadata",
                 self.path("shard-*.tar"), "-o", self.path("out.jsonl"),
                 *arguments], stderr=subprocess.PIPE, text=True,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")})
            end = time.monotonic() + 60
            while time.monotonic() < end and process.poll() is None:
                if os.path.exists(partial) and os.path.getsize(partial) > after:
                    break
                time.sleep(0.001)
            process.send_signal(stop)
            began = time.monotonic()
            _, err = process.communicate(timeout=60)
            seconds = time.monotonic() - began
            if process.returncode != 0 or "--resume" in arguments:
                break
            os.remove(self.path("out.jsonl"))
        return process.returncode, err, seconds

    def test_an_interrupted_run_is_continued_to_the_same_file(self):
        expected = self.shards(30, 120)
        self.assertEqual(self.command("--workers", "1")[0], 0)
        whole = self.out()
        self.assertEqual(len(whole.splitlines()), len(expected))
        os.remove(self.path("out.jsonl"))
        for workers in ("1", "3"):
            code, err, seconds = self.interrupted(
                signal.SIGINT, 8000, "--workers", workers)
            self.assertEqual(code, 130, err)
            self.assertIn("--resume", err)
            self.assertNotIn("Traceback", err)
            self.assertLess(seconds, 5)  # A second, on a quiet machine.
            self.assertEqual(self.command()[0], 1)
            code, _, err = self.command("--resume", "--seed", "9")
            self.assertIn("other sources or options", err)
            # Stopped once more, without a chance to say so.
            self.interrupted(signal.SIGKILL, 60000, "--resume", "--workers",
                             workers)
            if not os.path.exists(self.path("out.jsonl")):
                code, out, err = self.command("--resume", "--format", "json")
                self.assertEqual(code, 0, err)
                self.assertEqual(json.loads(out)["samples"], len(expected))
            self.assertEqual(self.out(), whole)
            os.remove(self.path("out.jsonl"))
            self.assertEqual(sorted(os.listdir(self.folder))[0],
                             "shard-000.tar")

    def test_a_full_disk_is_an_error_and_not_the_end(self):
        self.shards(3, 300)

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

        code, _, err = run(self.path("shard-*.tar"), "-o",
                           self.path("out.jsonl"), preexec_fn=limit)
        self.assertEqual(code, 1, err)
        self.assertRegex(err, "out.jsonl.*: cannot be written: File too large")
        self.assertNotIn("Traceback", err)
        code, _, err = self.command("--resume")
        self.assertEqual(code, 0, err)
        self.assertEqual(len(self.out().splitlines()), 900)

    def test_a_partial_file_that_was_changed_is_refused(self):
        self.shards(4, 100)
        self.put("out.jsonl.partial", "{}\n")
        self.put("out.jsonl.partial.json", "{}")
        self.assertEqual(self.command()[0], 1)
        code, _, err = self.command("--resume")
        self.assertEqual(code, 1)
        self.assertIn("--force", err)
        self.assertEqual(self.command("--force")[0], 0)
        self.assertEqual(len(self.out().splitlines()), 400)

    def test_write_makes_what_read_reads(self):
        samples = [Sample(5, ((3, 4),), (clip(2, 8, 9, 0.5),), (1.25,)),
                   Sample()]
        path = self.path("b.jsonl")
        self.assertEqual(metadata.write(samples, path), 2)
        self.assertEqual(list(metadata.read(path)), samples)
        with self.assertRaisesRegex(MetadataError, "no samples"):
            metadata.write([], self.path("c.jsonl"))
        self.assertEqual(os.listdir(self.folder), ["b.jsonl"])
