"""A model on the meta device: each rank reads its own parameters only, and all
together write a checkpoint. In plain torch, on two processes; the real classes
are in test_hf_weights.py."""
import copy
import gc
import json
import os
import random
import tempfile
import unittest

import test_split
from test_split import HAVE_ALL, cut

if HAVE_ALL:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    from pipeloom import hf
    from pipeloom.hf import shards
    from pipeloom.recompute import storage_of
    import tiny_model


def held():
    """Returns the bytes of all tensors' storages."""
    gc.collect()
    sizes = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and not thing.is_meta:
            try:
                storage = storage_of(thing)
            except NotImplementedError:  # Its data are gone already.
                continue
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def model_of(tied=False):
    torch.manual_seed(1)
    return tiny_model.TinyVlm(tied=tied)


def write(folder, model, index):
    """Writes a checkpoint, without the second name of a shared weight."""
    state = dict(model.named_parameters())
    names = sorted(state)
    if not index:
        shards.write_tensors(os.path.join(folder, "model.safetensors"), state)
        return
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors"
             for i, name in enumerate(names)}
    for file in set(files.values()):
        shards.write_tensors(os.path.join(folder, file), {
            n: state[n] for n in names if files[n] == file})
    shards.write_index(os.path.join(folder, "model" + shards.INDEX), files, 0)


def on_two(action, *args):
    """Runs action(rank, *args) on two processes; returns their results."""
    return on_ranks(2, action, *args)


def on_ranks(count, action, *args):
    """Does so on `count` processes."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_on_rank, (folder, action, args, count), count,
                           start_method="fork")
        result = []
        for rank in range(count):
            with open(os.path.join(folder, str(rank)), encoding="utf-8") as f:
                result.append(json.load(f))
        return result


def _on_rank(rank, folder, action, args, count):
    torch.set_num_threads(1)
    os.environ["USE_LIBUV"] = "0"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store",
                            rank=rank, world_size=count)
    result = action(rank, *args)
    with open(os.path.join(folder, str(rank)), "w", encoding="utf-8") as file:
        json.dump(result, file)
    dist.barrier()
    dist.destroy_process_group()


def load_and_save(rank, source, tied, out):
    """Loads, runs a step, changes the weights, saves. Returns facts."""
    one = model_of(tied)
    expected = dict(one.named_parameters())
    expected["head.weight"] = one.head.weight
    meta = model_of(tied).to("meta")
    meta.embed.weight.requires_grad_(False)
    if tied:
        meta.head.weight = meta.embed.weight
    before = held()
    pipe = hf.Pipeline(meta, cut(2, 2), rank=rank, weights=source)
    own = dict(pipe.named_parameters())
    facts = {
        "held": held() - before, "read": pipe.bytes_read,
        "own": sum(p.numel() * p.element_size() for p in own.values()),
        "equal": all(torch.equal(p, expected[n]) for n, p in own.items()),
        "frozen": sorted(n for n, p in own.items() if not p.requires_grad)}
    for p in own.values():
        p.requires_grad_(True)
    samples = test_split.samples_of(random.Random(1))
    micro = pipe.microbatches(samples, [0, 0, 1, 1, 2, 2])
    facts["loss"] = pipe.step(pipe.static_plan(0, micro), samples).loss
    with torch.no_grad():
        for p in own.values():
            p += 1.0
    pipe.save(out)
    return facts


def refused(rank, source):
    try:
        hf.Pipeline(model_of().to("meta"), cut(2, 2), rank=rank,
                    weights=source)
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return ""


@unittest.skipUnless(HAVE_ALL, "torch or grpcio is missing")
class WeightsTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.source = os.path.join(self.folder.name, "in")
        os.mkdir(self.source)

    def round_trip(self, tied, index):
        model = model_of(tied)
        write(self.source, model, index)
        out = os.path.join(self.folder.name, "out")
        ranks = on_two(load_and_save, self.source, tied, out)
        whole = sum(p.numel() * p.element_size() for p in model.parameters())
        for facts in ranks:
            self.assertTrue(facts["equal"])
            # The rank holds its own share, and at most a few bytes more.
            self.assertEqual(facts["read"], facts["own"])
            self.assertLessEqual(abs(facts["held"] - facts["own"]), 64)
            self.assertLess(facts["own"], 0.75 * whole)
        self.assertGreater(max(f["loss"] for f in ranks), 0)
        self.assertIn("embed.weight", ranks[0]["frozen"])
        again = shards.find_tensors(out)
        expected = dict(model.named_parameters())
        self.assertEqual(set(again), set(expected))
        for name, entry in again.items():
            self.assertTrue(torch.equal(shards.read_tensor(name, entry),
                                        expected[name] + 1.0), name)
        return ranks

    def test_each_rank_reads_its_own_share(self):
        ranks = self.round_trip(tied=False, index=True)
        whole = sum(p.numel() * p.element_size()
                    for p in model_of().parameters())
        self.assertEqual(sum(f["read"] for f in ranks), whole)

    def test_a_shared_weight_is_read_at_both_ends_and_written_once(self):
        self.round_trip(tied=True, index=False)

    def test_a_wrong_checkpoint_is_refused_by_all_ranks(self):
        model = model_of()
        del model.layers[2].up.bias
        write(self.source, model, True)
        errors = on_two(refused, self.source)
        self.assertRegex(errors[1], "WeightsError: .*/in has no tensor for "
                         "layers.2.up.bias of TinyVlm: is it a checkpoint")
        self.assertRegex(errors[0], "WeightsError: on rank 1: WeightsError")
        model = model_of()
        model.embed = torch.nn.Embedding(3, tiny_model.WIDTH)
        write(self.source, model, True)
        errors = on_two(refused, self.source)
        self.assertRegex(errors[0], r"model-0000\d-of-00002.safetensors has "
                         r"embed.weight with shape \[3, 8\]; the model's is "
                         r"\[21, 8\]: is config.json")

    def find(self, words):
        with self.assertRaisesRegex(hf.WeightsError, words):
            shards.find_tensors(self.source)

    def path(self, name):
        return os.path.join(self.source, name)

    def test_files_that_are_none_are_refused(self):
        self.find("no .safetensors file is there; of weights in another")
        with open(self.path("model.safetensors"), "wb") as file:
            file.write(b"version https://git")
        self.find("model.safetensors: no file of the safetensors format")
        write(self.source, model_of(), False)
        with open(self.path("model.safetensors"), "r+b") as file:
            file.truncate(os.path.getsize(file.name) - 1)
        self.find(r"it has \d+ bytes of \d+: copy it again")
        write(self.source, model_of(), True)
        os.remove(self.path("model-00002-of-00002.safetensors"))
        self.find("00002-of-00002.safetensors is missing, which model.safe")
        os.remove(self.path("model.safetensors.index.json"))
        os.remove(self.path("model.safetensors"))
        shards.write_tensors(self.path("b.safetensors"), {
            n: p for n, p in model_of().named_parameters()})
        self.find(r"bias is in .*b.safetensors and in .*00001-of-00002.safe.*"
                  "leave the files of one checkpoint")
        with open(self.path("model.safetensors.index.json"), "w",
                  encoding="utf-8") as file:
            file.write('{"weight_map": {"x": "b.safetensors"}}')
        self.find("b.safetensors has no tensor 'x', which model.safetensors.i")
        self.source = self.path("nowhere")
        self.find("no such folder; for the name of a model in a hub")

    def test_all_types_survive(self):
        path = self.path("model.safetensors")
        tensors = {"a": torch.arange(6).reshape(2, 3), "b": torch.zeros(0, 4),
                   "c": torch.tensor(2.5), "d": torch.tensor([True, False]),
                   "e": torch.randn(3, 2).to(torch.bfloat16),
                   "f": torch.randn(4, 3).t()}
        shards.write_tensors(path, tensors)
        found = shards.find_tensors(self.source)
        for name, expected in tensors.items():
            again = shards.read_tensor(name, found[name])
            self.assertEqual((again.dtype, again.shape),
                             (expected.dtype, expected.shape))
            self.assertTrue(torch.equal(again, expected))
        self.assertEqual(os.listdir(self.source), ["model.safetensors"])

    def test_a_model_with_values_and_one_without_are_told_apart(self):
        from pipeloom.hf.weights import is_meta
        model = copy.deepcopy(model_of())
        self.assertFalse(is_meta(model))
        model.embed.to("meta")
        with self.assertRaisesRegex(ValueError, "1 of 41 parameters of"):
            is_meta(model)


if __name__ == "__main__":
    unittest.main()
