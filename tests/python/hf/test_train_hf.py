"""examples/train_hf.py as a newcomer runs it: a model's folder, a dataset, two
processes, with the service and from what the first run has saved.

usage: test_train_hf.py    with a Python that has transformers, such as
scripts/hf_peer.sh makes; PIPELOOM_BINARY names the program.
"""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
sys.path[:0] = [os.path.join(ROOT, "examples"), os.path.join(ROOT, "python")]

try:
    import grpc  # noqa: F401
    import PIL  # noqa: F401
    import tokenizers  # noqa: F401
    import torchvision  # noqa: F401
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)

import hf_data
import hf_training
import tiny_folder

BINARY = os.environ.get("PIPELOOM_BINARY", "pipeloom")
PLACES = (250, 251, 252, 253)


class ExampleTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, *names):
        place = os.path.join(self.folder, *names)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        return place

    def start(self, *options, processes=2):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        return subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node",
             str(processes), "--master-port", str(port),
             os.path.join(ROOT, "examples/train_hf.py"), *options],
            capture_output=True, text=True, check=False, timeout=500,
            env={**os.environ, "USE_LIBUV": "0", "OMP_NUM_THREADS": "1"})

    def train(self, *options, processes=2):
        done = self.start(*options, processes=processes)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        losses = [float(x) for x in re.findall(r"step +\d+  loss ([\d.]+)",
                                               done.stdout)]
        read = [int(x.replace(",", "")) for x in re.findall(
            r"([\d,]+) bytes read", done.stdout)]
        return losses, read, done.stdout

    @unittest.skipUnless(os.path.exists(os.path.join(
        os.path.dirname(BINARY), "pipeloom-service")), "no service was built")
    def test_a_folder_a_dataset_and_two_processes(self):
        model = tiny_folder.make_folder("qwen2_5_vl", self.path("model"))
        tiny_folder.make_jsonl(self.path("records", ""), 9)
        server, target = hf_training.serve(BINARY)
        try:
            losses, read, _ = self.train(
                "--model", self.path("model"), "--data", self.path("records"),
                "--service", target, "--pipeloom", BINARY, "--steps", "5",
                "--samples", "6", "--microbatches", "3", "--learning-rate",
                "1e-2", "--save", self.path("saved"))
        finally:
            server.terminate()
            server.wait(30)
            server.stdout.close()
        self.assertEqual(len(losses), 5)
        self.assertLess(losses[-1], losses[0] - 0.3)
        # Each process has read its own share.
        self.assertEqual(sum(read), 4 * sum(p.numel()
                                            for p in model.parameters()))
        self.assertLess(max(read), 0.7 * sum(read))
        again = type(model).from_pretrained(self.path("saved"))
        self.assertFalse(again.lm_head.weight.equal(model.lm_head.weight))
        # From what was saved, on webdataset shards, without the service.
        tiny_folder.make_shard(self.path("shards", ""), 4)
        losses, _, _ = self.train(
            "--model", self.path("saved"), "--data", self.path("shards"),
            "--steps", "1", "--samples", "2", "--microbatches", "2",
            "--dtype", "bfloat16", "--freeze", "model.visual")
        self.assertEqual(len(losses), 1)

    @unittest.skipUnless(os.path.exists(os.path.join(
        os.path.dirname(BINARY), "pipeloom-service")), "no service was built")
    def test_replicas_with_divided_parameters(self):
        model = tiny_folder.make_folder("llama", self.path("model"))
        self.write_texts(self.path("records", "train.jsonl"), 9)
        server, target = hf_training.serve(BINARY)
        try:
            losses, read, out = self.train(
                "--model", self.path("model"), "--data", self.path("records"),
                "--service", target, "--pipeloom", BINARY, "--pp", "2",
                "--shard", "step", "--steps", "4", "--samples", "4",
                "--microbatches", "2", "--learning-rate", "1e-2", "--warmup",
                "1", "--save", self.path("saved"), processes=4)
        finally:
            server.terminate()
            server.wait(30)
            server.stdout.close()
        self.assertLess(losses[-1], losses[0] - 0.3)
        self.assertNotIn("static-1f1b", out)
        # Each of the two replicas has read all, and only the first has written.
        self.assertEqual(sum(read), 2 * 4 * sum(p.numel()
                                                for p in model.parameters()))
        again = type(model).from_pretrained(self.path("saved"))
        self.assertFalse(again.lm_head.weight.equal(model.lm_head.weight))

    @staticmethod
    def write_texts(path, count):
        with open(path, "w", encoding="utf-8") as file:
            for i in range(count):
                file.write(json.dumps({"messages": [
                    {"role": "user", "content": f"what is {i}?"},
                    {"role": "assistant", "content": f"it is {i}."}]}) + "\n")

    def test_what_is_wrong_is_said(self):
        tiny_folder.make_folder("llama", self.path("model"), weights=False)
        tiny_folder.make_jsonl(self.path("records", ""), 9)
        options = ("--model", self.path("model"), "--data",
                   self.path("records"), "--steps", "1", "--samples", "3",
                   "--microbatches", "3")
        done = self.start(*options)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"train_hf: .*train.jsonl:\d: it has "
                         "images, but the model's folder has no processor")
        for change, words in (
                (("--data", self.path("nowhere")),
                 "train_hf: .*nowhere: no such file or folder"),
                (("--model", self.path("records")), "train_hf: --model .*"),
                (("--pp", "3"), "--pp 3 does not divide the 2 processes"),
                (("--shard", "step"), "--shard needs replicas"),
                (("--service", "127.0.0.1:1", "--pipeloom", "no-pipeloom"),
                 "train_hf: --service 127.0.0.1:1: .*'no-pipeloom'.*--pipeloom "
                 "names the program")):
            done = self.start(*options, "--skip-broken", *change)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.stderr, words)
        losses, _, out = self.train(*options, "--skip-broken")
        self.assertEqual(len(losses), 1)
        self.assertIn("random weights", out)
        self.assertRegex(out, r"left out \d records; .*it has images")


class DataTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        tiny_folder.make_folder("llava", cls.folder, weights=False)
        cls.samples = hf_data.Samples(cls.folder, PLACES)

    def record(self, turns, images=0):
        path = os.path.join(self.folder, "image.png")
        tiny_folder.make_image(16, 16, 1).save(path)
        return hf_data.Record("here", turns, [(path, 0, 0)] * images)

    def answers(self, *args):
        """Returns the trained text and the number of tokens of images."""
        sample = self.samples.sample(self.record(*args))
        ids, labels = sample["input_ids"][0], sample["labels"][0]
        words = self.samples.tokenizer.convert_ids_to_tokens(
            ids[labels != hf_data.IGNORED])
        return "".join(words), int((ids == 250).sum())

    def test_labels_are_on_answers(self):
        turns = [("system", "be kind"), ("user", "hi"), ("assistant", "yes"),
                 ("user", "more?"), ("assistant", "no")]
        self.assertEqual(self.answers(turns), ("yes<end>no<end>", 0))
        self.assertEqual(self.answers(turns, 2), ("yes<end>no<end>", 32))
        # An image in a later turn.
        turns[3] = ("user", "and <image> this?")
        self.assertEqual(self.answers(turns, 1), ("yes<end>no<end>", 16))

    def refused(self, words, turns, images=0):
        with self.assertRaisesRegex(hf_data.DataError, words):
            self.samples.sample(self.record(turns, images))

    def test_records_that_cannot_be_used_are_refused(self):
        self.refused("here: it has no answer", [("user", "hi")])
        self.refused("here: its texts have 2 times <image>, but there are 1",
                     [("user", "<image> <image>"), ("assistant", "a")], 1)
        self.refused("here: no turn of a user can take its image",
                     [("assistant", "a")], 1)
        record = self.record([("user", "hi"), ("assistant", "a")])
        record.images = [("nowhere.png", 0, 0)]
        with self.assertRaisesRegex(hf_data.DataError,
                                    "nowhere.png.*--media-root"):
            self.samples.sample(record)

    def read(self, value, name="a.jsonl"):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(value if isinstance(value, str) else json.dumps(value))
        return hf_data.read_records(path)

    def test_files_that_cannot_be_read_are_refused(self):
        for value, words in (
                ("{", "a.jsonl:1: "), ("", "no .jsonl, .json, .tar or .pt"),
                ("[1]", "a.jsonl:1: a record must be an object"),
                ({"conversations": [{"from": "bot", "value": "x"}]},
                 "a turn needs `from`.*'bot'"),
                ({"video": "a.mp4"}, "has 'video', which this example")):
            with self.assertRaisesRegex(hf_data.DataError, words):
                self.read(value)
        self.assertEqual(len(self.read([{"messages": []}], "a.json")), 1)


if __name__ == "__main__":
    unittest.main()
