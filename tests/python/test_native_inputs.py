"""Models of trainers and the global batch of a job in the Python package: the
same as the command line's, with errors that name the argument."""
import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                     "../.."))
BINARY = os.environ.get("PIPELOOM_BINARY", "")
# The folder of the extension; empty: that of an installed package.
NATIVE = os.environ.get("PIPELOOM_NATIVE", "")
if NATIVE != "installed" and not glob.glob(os.path.join(NATIVE, "_native*")):
    print("skipped: the Python extension was not built")
    sys.exit(0)
if NATIVE != "installed":
    sys.path.insert(0, os.path.join(ROOT, "python"))
import pipeloom  # noqa: E402

if NATIVE != "installed":
    pipeloom.__path__.append(NATIVE)

FLAGS = ("--num-layers 4 --hidden-size 512 --ffn-hidden-size 1024 "
         "--num-attention-heads 8 --swiglu --normalization RMSNorm "
         "--disable-bias-linear --position-embedding-type rope "
         "--padded-vocab-size 32000 --lr 1e-4")


def written(*arguments):
    """Returns the model file that the command writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.json")
        subprocess.run([BINARY, "model", "--out", path, *arguments], check=True,
                       stdout=subprocess.DEVNULL)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


class Models(unittest.TestCase):
    def test_flags_and_their_file_are_the_model_that_the_command_writes(self):
        model = pipeloom.Model.from_pretrained(FLAGS)
        self.assertEqual(model.to_dict(), written("--", *FLAGS.split()))
        self.assertEqual(model.architecture, "megatron")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "args.sh")
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"ARGS=(\n{FLAGS}\n)\npretrain_gpt.py ${{ARGS[@]}}\n")
            again = pipeloom.Model.from_pretrained(path)
        self.assertEqual(again.parameters, model.parameters)

    def test_a_name_of_torchtitan_is_a_model(self):
        model = pipeloom.Model.from_pretrained("torchtitan:llama3/8B")
        self.assertEqual((model.name, model.parameters),
                         ("llama3-8B", 8_030_261_248))
        self.assertEqual(model.to_dict(), written("torchtitan:llama3/8B"))

    def test_errors_name_what_is_wrong(self):
        for source, why in (("--num-layers 4", "--hidden-size"),
                            ("--num-layers x", "must be an integer"),
                            ("torchtitan:llama3/9B", "flavors of llama3 are")):
            with self.assertRaisesRegex(ValueError, why):
                pipeloom.Model.from_pretrained(source)


class GlobalBatch(unittest.TestCase):
    def job(self, **batch):
        return pipeloom.Job("llama3-8b", "h100-sxm", tp=2, pp=4, dp=4,
                            microbatch_tokens=8192, **batch)

    def test_microbatches_follow_from_samples_or_tokens(self):
        self.assertEqual(self.job(global_batch_samples=512,
                                  microbatch_samples=2).microbatches, 64)
        self.assertEqual(self.job(global_batch_tokens=1 << 20).microbatches, 32)

    def test_what_does_not_divide_or_is_given_twice_is_an_error(self):
        for batch, why in (
                ({"global_batch_samples": 100, "microbatch_samples": 8},
                 "96 or 128"),
                ({"global_batch_samples": 128}, "microbatch_samples"),
                ({"global_batch_tokens": 1 << 20, "microbatches": 8},
                 "one of"),
                ({}, "microbatches")):
            with self.assertRaisesRegex(ValueError, why):
                self.job(**batch)

    def test_a_step_takes_the_samples_of_the_global_batch(self):
        plan = pipeloom.plan(
            self.job(global_batch_samples=64, microbatch_samples=2),
            [{"text_tokens": 1000}] * 80, evaluations=5, partition="rule")
        self.assertEqual(plan.steps[0].samples, 64)


class Samples(unittest.TestCase):
    def test_numbers_that_are_none_are_called_by_their_field(self):
        nan, inf = float("nan"), float("inf")
        for sample, why in (
                (pipeloom.Sample(nan), "text_tokens is nan"),
                (pipeloom.Sample(5, audio_seconds=(1.0, inf)),
                 "audio_seconds[1] is inf"),
                (pipeloom.Sample(5, ((640, -inf),)), "images[0][1] is -inf"),
                ({"videos": [{"frames": 8, "seconds": nan}]},
                 "videos[0].seconds is nan")):
            with self.assertRaises(ValueError) as caught:
                pipeloom.plan("dip-vlm-s", [pipeloom.Sample(5), sample],
                              evaluations=1)
            self.assertEqual(
                str(caught.exception), f"samples[1].{why}; it must be a finite "
                "number that is not negative")

    def test_arguments_of_other_types_are_named(self):
        sample = pipeloom.Sample
        for samples, why in (
                ([sample(5), sample(5, (640, 480))],
                 "samples[1] is Sample(text_tokens=5, images=(640, 480), "
                 "videos=(), audio_seconds=()); images must be a list of pairs "
                 "(width, height), such as [(640, 480)]"),
                ([sample(5, None)], "samples[0] is Sample(text_tokens=5, images"
                 "=None, "),
                ([sample(5, audio_seconds=3.0)], "audio_seconds a list of "),
                ([sample(5, videos=((8, 640, 480, 1.0),))], "videos a list of "),
                (1, "samples is 1; give a list of pipeloom.Sample, a batch ")):
            with self.subTest(why), self.assertRaises(TypeError) as caught:
                pipeloom.plan("dip-vlm-s", samples, evaluations=1)
            self.assertIn(why, str(caught.exception))
        with self.assertRaisesRegex(TypeError, "job is 1; give a pipeloom.Job"):
            pipeloom.plan(1, "image_text", evaluations=1)
        with self.assertRaisesRegex(TypeError, "slow_ranks is .1.; give a dict"):
            pipeloom.plan("dip-vlm-s", "image_text", slow_ranks=[1])
        for values in (2, "24"):  # Not 2 and 4.
            with self.assertRaisesRegex(
                    TypeError, r"sweep\['parallel.pp'\] is .*; give a list"):
                pipeloom.whatif("dip-vlm-s", "image_text",
                                sweep={"parallel.pp": values}, evaluations=1)


class Questions(unittest.TestCase):
    def test_a_budget_and_another_number_of_gpus_are_asked_as_by_the_command(
            self):
        found = pipeloom.whatif(
            "dip-vlm-s", "image_text", ask=["layout", "budget"], gpus=32,
            budget=80, prices={"h100-sxm": 2.5, "b200-sxm": 5}, evaluations=2,
            strategy="1f1b", partition="rule", threads=2)
        labels = [row["label"] for row in found.data["configurations"]]
        self.assertTrue(any("x h100-sxm for" in name for name in labels))
        with self.assertRaisesRegex(ValueError, "needs prices"):
            pipeloom.whatif("dip-vlm-s", "image_text", ask="budget", budget=80)


if __name__ == "__main__":
    unittest.main()
