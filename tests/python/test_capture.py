"""pipeloom.capture: model files and costs from modules of torch, against closed
forms and the planner."""
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../python"))

try:
    import torch
    from torch import nn
    HAVE_TORCH = True
except ImportError:
    HAVE_TORCH = False

try:
    from torch.nn.attention.flex_attention import flex_attention as FLEX
except ImportError:
    FLEX = None

if HAVE_TORCH:
    from pipeloom import capture, local
    from pipeloom.capture import runs
    from pipeloom.capture.lines import fit
    from pipeloom.plan import Microbatch, SubMicrobatch
    from pipeloom.static_schedule import Stage, static_plan

BINARY = os.environ.get("PIPELOOM_BINARY", "pipeloom")
WIDTH, INNER, VOCAB = 32, 96, 50
SIZES = ((64, 1), (64, 4), (256, 4), (512, 2))


if HAVE_TORCH:
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(WIDTH, INNER)
            self.down = nn.Linear(INNER, WIDTH)

        def forward(self, x):
            return x + self.down(torch.tanh(self.up(x)))

    class Prefix(nn.Module):
        """Puts 16 rows, made for each instance, through a product and adds
        their mean."""

        def __init__(self):
            super().__init__()
            self.rows = nn.Parameter(torch.zeros(16, WIDTH))
            self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, x):
            rows = self.rows.expand(len(x), 16, WIDTH) + x.mean(1, True)
            return x + self.linear(rows.contiguous()).mean(1, True)

    class Attention(nn.Module):
        def __init__(self, fused):
            super().__init__()
            self.fused = fused

        def forward(self, x):
            heads = x.view(*x.shape[:2], 4, WIDTH // 4).transpose(1, 2)
            if self.fused:
                y = nn.functional.scaled_dot_product_attention(
                    heads, heads, heads)
            else:
                y = torch.softmax(heads @ heads.transpose(2, 3), -1) @ heads
            return y.transpose(1, 2).flatten(2)

    class Masked(nn.Module):
        """Takes and returns a structure, with a mask that has no gradient."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, given):
            return {"x": self.linear(given["x"]) * given["mask"][..., None],
                    "mask": given["mask"]}

    class Merge(nn.Module):
        """Four rows become one."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4 * WIDTH, 2 * WIDTH, bias=False)

        def forward(self, x):
            return self.linear(x.reshape(len(x), -1, 4 * WIDTH))


def rows(tokens, instances):
    return torch.randn(instances, tokens // instances, WIDTH)


@unittest.skipUnless(HAVE_TORCH, "torch is missing")
class CaptureTest(unittest.TestCase):

    def test_totals_are_those_of_the_closed_form(self):
        for device in ("cpu", "meta"):
            with self.subTest(device=device):
                layers = [Mlp().to(device), Mlp().to(device),
                          nn.Linear(WIDTH, VOCAB).to(device)]
                got = capture.module(
                    "text", layers, lambda t, n, d=device: rows(t, n).to(d),
                    SIZES, loss=lambda y: y.square().mean())
                self.assertEqual(got.parameters, sum(
                    p.numel() for m in layers for p in m.parameters()))
                self.assertEqual(got.trained, got.parameters)
                for layer in got.layers[:2]:
                    self.assertEqual(layer.flops, (4.0 * WIDTH * INNER, 0.0))
                    # Input and the result of tanh, of 2 bytes each.
                    self.assertEqual(layer.kept_bytes,
                                     (2.0 * (WIDTH + INNER), 0.0))
                    self.assertLess(layer.off, 1e-9)
                    self.assertEqual(layer.hidden, WIDTH)
                    self.assertFalse(layer.on_output)
                self.assertEqual(got.layers[2].flops,
                                 (2.0 * WIDTH * VOCAB, 0.0))
                # Its input, and its result for the square.
                self.assertEqual(got.layers[2].kept_bytes,
                                 (2.0 * (WIDTH + VOCAB), 0.0))
                groups = got.to_json()["layers"]
                self.assertEqual([g.get("count", 1) for g in groups], [2, 1])

    def test_work_of_an_instance_is_told_from_that_of_a_token(self):
        got = capture.module("vision", [Mlp(), Prefix()], rows, SIZES)
        self.assertEqual(got.layers[0].flops[1], 0.0)
        a, b = got.layers[1].flops
        self.assertAlmostEqual(a, 0.0, delta=1e-6)
        self.assertAlmostEqual(b, 2.0 * 16 * WIDTH * WIDTH, delta=1e-3)
        self.assertLess(got.layers[1].off, 1e-6)

    def test_attention_counts_by_its_square(self):
        fused = hasattr(nn.functional, "scaled_dot_product_attention")
        for layer in [Attention(False)] + [Attention(True)] * fused:
            with self.subTest(fused=layer.fused):
                got = capture.module("text", [layer], rows,
                                     [(64 * n, n) for n in (1, 2, 4)])
                self.assertEqual(got.layers[0].flops, (4.0 * 64 * WIDTH, 0.0))
                self.assertLess(got.layers[0].off, 1e-9)
                # Sequences of several lengths are no line, and it says so.
                got = capture.module("text", [layer], rows, SIZES)
                self.assertGreater(got.layers[0].off, 0.2)
                self.assertIn(f"{got.layers[0].off * 100:.1f} %", str(got))

    @unittest.skipIf(FLEX is None, "torch has no flex_attention")
    def test_flex_attention_counts_as_the_other(self):
        class Flex(nn.Module):
            def forward(self, x):
                x = x.unsqueeze(1)
                return FLEX(x, x, x).squeeze(1)

        got = capture.module("text", [Flex()], rows,
                             [(64 * n, n) for n in (1, 2, 4)])
        self.assertEqual(got.layers[0].flops, (4.0 * 64 * WIDTH, 0.0))
        self.assertEqual(got.uncounted, ())

    def test_convolutions(self):
        cases = ((nn.Conv1d(8, 12, 3, padding=1), 2 * 12 * 8 * 3),
                 (nn.Conv1d(8, 12, 3, padding=1, groups=4), 2 * 12 * 2 * 3),
                 (nn.ConvTranspose1d(8, 12, 3, padding=1), 2 * 8 * 12 * 3),
                 (nn.ConvTranspose1d(8, 12, 3, padding=1, groups=4),
                  2 * 8 * 3 * 3))
        for layer, flops in cases:
            with self.subTest(layer=str(layer)):
                got = capture.module(
                    "audio", [layer], lambda t, n: torch.randn(n, 8, t // n),
                    SIZES, call=lambda layer, x: layer(x).transpose(1, 2))
                self.assertEqual(got.layers[0].flops, (float(flops), 0.0))
                self.assertEqual(got.layers[0].hidden, 12)

    def test_recurrent_layers_and_products_of_other_kinds(self):
        class Recurrent(nn.Module):
            def __init__(self, kind):
                super().__init__()
                self.layer = kind(WIDTH, WIDTH, batch_first=True)

            def forward(self, x):
                return self.layer(x)[0]

        weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        square = 2.0 * WIDTH * WIDTH
        cases = ((Recurrent(nn.LSTM), 8 * square),
                 (Recurrent(nn.GRU), 6 * square),
                 (lambda x: nn.functional.bilinear(
                     x, x, weight.expand(3, WIDTH, WIDTH)), 3 * square),
                 (lambda x: torch.mv(x.reshape(-1, WIDTH), weight[0]
                                     ).reshape(*x.shape[:2], 1), 2.0 * WIDTH),
                 (lambda x: torch.addbmm(
                     torch.zeros(x.shape[1], WIDTH), x,
                     weight.expand(len(x), WIDTH, WIDTH)), square))
        for layer, flops in cases:
            got = capture.module("text", [layer], rows, [(64, 1), (128, 1)])
            self.assertAlmostEqual(got.layers[0].flops[0] / flops, 1.0)

    def test_what_is_not_counted_is_named(self):
        got = capture.module(
            "text", [lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1), dim=1),
                     lambda x: torch.cdist(x, x)], rows, SIZES)
        self.assertTrue({"aten::_fft_r2c", "aten::_fft_c2r"} <=
                        set(got.uncounted))
        self.assertTrue(any("dist" in name for name in got.uncounted))
        self.assertIn("Operations are not counted of aten::", str(got))

    def test_structures_shared_and_frozen_parameters(self):
        first, second, third = Masked(), Masked(), Masked()
        second.linear.weight = first.linear.weight
        third.requires_grad_(False)
        got = capture.module(
            "text", [first, second, third],
            lambda t, n: {"x": rows(t, n), "mask": torch.ones(n, t // n)},
            SIZES)
        weight = WIDTH * WIDTH
        self.assertEqual([layer.parameters for layer in got.layers],
                         [weight, 0, weight])
        self.assertEqual((got.parameters, got.trained), (2 * weight, weight))
        for layer in got.layers:
            self.assertEqual(layer.flops, (2.0 * weight, 0.0))
        # A frozen product keeps no input; the product with the mask does.
        self.assertLess(got.layers[2].kept_bytes[0],
                        got.layers[1].kept_bytes[0])

    def test_layers_behind_a_merge_count_by_output_tokens(self):
        got = capture.module(
            "vision", [Mlp(), Merge(), nn.Linear(2 * WIDTH, WIDTH)], rows,
            SIZES, role="encoder")
        self.assertEqual([layer.on_output for layer in got.layers],
                         [False, True, True])
        self.assertEqual(got.layers[1].flops, (16.0 * WIDTH * WIDTH, 0.0))
        self.assertEqual(got.layers[1].hidden, 2 * WIDTH)
        self.assertTrue(
            got.to_json()["layers"][1]["layer"]["on_output_tokens"])

    def test_the_captured_modules_are_as_they_were(self):
        layer = nn.Sequential(Mlp(), nn.BatchNorm1d(64))
        layer[0].up.weight.grad = torch.ones_like(layer[0].up.weight)
        state = {k: v.clone() for k, v in layer.named_parameters()}
        with torch.no_grad():
            capture.module("text", [layer], lambda t, n: torch.randn(
                t // 64, 64, WIDTH), [(64, 1), (256, 4)], repeats=1)
        self.assertTrue(torch.equal(layer[0].up.weight.grad, torch.ones_like(
            layer[0].up.weight)))
        self.assertIsNone(layer[0].down.weight.grad)
        for name, value in layer.named_parameters():
            self.assertTrue(torch.equal(value, state[name]))

    def test_a_linear_layer_with_a_loss_is_a_loss_head(self):
        embedding = nn.Embedding(VOCAB, WIDTH)
        for tied in (False, True):
            head = nn.Linear(WIDTH, VOCAB)
            if tied:
                head.weight = embedding.weight
            got = capture.module(
                "text", [embedding, Mlp(), head],
                lambda t, n: torch.zeros(n, t // n, dtype=torch.long), SIZES,
                loss=lambda y: y.square().mean())
            layer = got.to_json()["layers"][-1]["layer"]
            self.assertEqual(layer, {
                "kind": "LAYER_KIND_LOSS_HEAD", "name": "Linear",
                "hidden": WIDTH, "vocab": VOCAB, "vector_parameters": VOCAB,
                "tied": tied})
            self.assertEqual(got.parameters, sum(
                p.numel() for m in (embedding, Mlp()) for p in m.parameters()) +
                VOCAB + (0 if tied else WIDTH * VOCAB))
        # Without its loss it is a layer like others.
        got = capture.module("text", [Mlp(), nn.Linear(WIDTH, VOCAB)], rows,
                             SIZES)
        self.assertEqual(got.to_json()["layers"][-1]["layer"]["kind"],
                         "LAYER_KIND_FIXED_WORK")

    def test_errors_name_the_argument(self):
        def of(**options):
            return capture.module(**{
                "name": "text", "layers": [Mlp()], "inputs": rows,
                "sizes": SIZES, **options})

        for options, wanted in (
                ({"role": "decoder"}, "role is 'decoder'; it must be one of"),
                ({"layers": []}, "text has no layers"),
                ({"sizes": [(64, 1), (64, 1)]}, "two or more different pairs"),
                ({"sizes": [(64, 0), (64, 1)]}, "each at least 1"),
                ({"repeats": -1}, "repeats is -1"),
                ({"layers": [lambda x: x.sum()]}, "layer 0 of text"),
                ({"layers": [lambda x: None]}, "returned no tensor"),
                ({"layers": [Mlp().to("meta")], "repeats": 1,
                  "inputs": lambda t, n: rows(t, n).to("meta")},
                 "have no times")):
            with self.subTest(wanted=wanted):
                with self.assertRaisesRegex(ValueError, wanted):
                    of(**options)
        one = of()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.json")
            for modules, feeds, wanted in (
                    ([one, one], (), "two modules are named 'text'"),
                    ([one], [("vision", "text")], "feeds names 'vision'")):
                with self.assertRaisesRegex(ValueError, wanted):
                    capture.save(path, "m", modules, feeds)
            self.assertFalse(os.path.exists(path))
        lossy, other = of(loss=lambda y: y.mean()), of(name="image")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.json")
            with self.assertRaisesRegex(
                    ValueError, "text has a loss and feeds image; the planner"):
                capture.save(path, "m", [lossy, other], [("text", "image")])
            capture.save(path, "m", [other, lossy], [("image", "text")])
            with open(path, encoding="utf-8") as file:
                before = file.read()
            with mock.patch.object(capture.json, "dump",
                                   side_effect=OSError("disk full")):
                with self.assertRaisesRegex(OSError, "disk full"):
                    capture.save(path, "m", [other, lossy], [("image", "text")])
            with open(path, encoding="utf-8") as file:
                self.assertEqual(file.read(), before)
        with self.assertRaisesRegex(ValueError, "repeats=5"):
            one.seconds("F", 0, 1, 64, 1)

    def test_layers_that_need_values_are_named(self):
        class Chosen(nn.Module):
            """Works on the rows of one expert."""

            def __init__(self, choose):
                super().__init__()
                self.gate, self.choose = nn.Linear(WIDTH, 2), choose

            def forward(self, x):
                return x * self.gate(self.choose(x)).sum()

        for choose in (lambda x: x[x[:, 0] > 0],
                       lambda x: x if float(x.sum()) > 0 else -x):
            layers = [nn.Linear(WIDTH, WIDTH), Chosen(choose)]
            capture.module("text", layers, lambda tokens, _: torch.ones(
                tokens, WIDTH), SIZES)
            for layer in layers:
                layer.to("meta")
            with self.assertRaisesRegex(
                    ValueError, "layer 1 of text, Chosen, does not run on the "
                    "meta device.*give the layers and their inputs values"):
                capture.module("text", layers, lambda tokens, _: torch.ones(
                    tokens, WIDTH, device="meta"), SIZES)
        # An error of another kind stays as it is.
        with self.assertRaisesRegex(RuntimeError, "shape|dim"):
            capture.module("text", [nn.Linear(WIDTH, 3, device="meta")],
                           lambda tokens, _: torch.ones(tokens, 5,
                                                        device="meta"), SIZES)

    def test_lines(self):
        sizes = [(10, 1), (20, 1), (20, 4), (70, 3)]
        for line in ((3.0, 0.0), (0.0, 5.0), (3.0, 5.0), (0.0, 0.0)):
            got, off = fit(sizes, [line[0] * t + line[1] * n
                                   for t, n in sizes])
            self.assertEqual(got, line)
            self.assertLess(off, 1e-9)
        # Sizes that do not tell tokens from instances.
        got, off = fit([(10, 1), (20, 2)], [30, 60])
        self.assertEqual((got, round(off, 9)), ((3.0, 0.0), 0.0))
        # Never negative: the second falls with instances.
        got, off = fit([(10, 1), (10, 5)], [100, 20])
        self.assertGreaterEqual(min(got), 0.0)
        self.assertGreater(off, 0.1)
        self.assertEqual(fit([(1, 1), (2, 1)], [0, 4])[1], 1.0)


@unittest.skipUnless(HAVE_TORCH, "torch is missing")
class CostTest(unittest.TestCase):
    """Times by a clock that goes on when a layer works, and when its gradient
    passes."""

    def setUp(self):
        self.now = 0.0
        self.clock, runs._now = runs._now, lambda device: self.now
        case = self

        class Works(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, per_token, per_instance):
                ctx.cost = (per_token * x.shape[0] * x.shape[1] +
                            per_instance * x.shape[0])
                case.now += ctx.cost
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                case.now += 2 * ctx.cost
                return gradient, None, None

        class Layer(Mlp):
            def forward(self, x):
                return Works.apply(super().forward(x), 1e-6, 5e-5)

        self.modules = [
            capture.module(name, [Layer() for _ in range(2)], rows, SIZES,
                           repeats=2) for name in ("vision", "text")]

    def tearDown(self):
        runs._now = self.clock

    def test_times_are_saved(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "times.json")
            capture.save_times(path, self.modules)
            with open(path, encoding="utf-8") as file:
                modules = json.load(file)["captured_times"]
            untimed = capture.module("other", [Mlp()], rows, SIZES)
            with self.assertRaisesRegex(ValueError, "other was captured with"):
                capture.save_times(path, [untimed])
        self.assertEqual([m["module"] for m in modules], ["vision", "text"])
        self.assertEqual(modules[0]["layers"], 2)
        self.assertEqual(modules[0]["device"], "cpu")
        self.assertEqual([(r["tokens"], r["instances"], r["output_tokens"])
                          for r in modules[0]["runs"]],
                         [(t, n, t) for t, n in SIZES])
        for part, run in zip(self.modules[0].times, modules[0]["runs"]):
            for kind, name in (("F", "forward_us"), ("B", "backward_us")):
                self.assertAlmostEqual(run[name], 1e6 * self.modules[0].seconds(
                    kind, 0, 2, part.tokens, part.instances), delta=5)

    def test_tasks_cost_as_measured(self):
        stages = [Stage(0, 0, 2, 0), Stage(1, 0, 1, 1), Stage(1, 1, 1, 2)]
        microbatches = [
            Microbatch((0,), 0.5, (SubMicrobatch(0, 0, 0, 3, 100),
                                   SubMicrobatch(1, 0, 0, 1, 700))),
            Microbatch((1,), 0.5, (SubMicrobatch(1, 0, 0, 1, 300),))]
        cost = capture.cost(self.modules, stages, microbatches)
        self.assertAlmostEqual(cost("F", 0, 0, 0), 2 * 250_000, delta=5)
        self.assertAlmostEqual(cost("B", 0, 0, 0), 4 * 250_000, delta=5)
        self.assertAlmostEqual(cost("F", 2, 0, 0), 750_000, delta=5)
        self.assertAlmostEqual(cost("B", 1, 1, 0), 700_000, delta=5)
        with self.assertRaisesRegex(ValueError, "split_backward"):
            cost("W", 0, 0, 0)
        # Layers and sizes that are not known would cost nothing.
        far = [*stages[:2], dataclasses.replace(stages[2], num_layers=99)]
        with self.assertRaisesRegex(ValueError, r"of text, which was captured"):
            capture.cost(self.modules, far, microbatches)("F", 2, 0, 0)
        with self.assertRaisesRegex(ValueError, "module 1 has 0 tokens"):
            capture.cost(self.modules, stages,
                         [Microbatch((0,), 1.0, (SubMicrobatch(1),))])
        plan = static_plan(stages, [(0, 1)], microbatches, ("vision", "text"),
                           cost=cost)
        self.assertEqual({t.duration_ns for t in plan.tasks.values()
                          if (t.kind, t.microbatch) == ("F", 0)},
                         {cost("F", 0, 0, 0), cost("F", 1, 0, 0)})
        graph = local.graph_of(stages, [(0, 1)], microbatches, cost)
        kept = capture.activation_bytes(self.modules, stages, microbatches,
                                        graph, element_bytes=4)
        # Input, the result of tanh, and nothing of Works.
        of_layer = 4 * (WIDTH + INNER)
        self.assertEqual(
            {(t.stage, t.microbatch): kept[i]
             for i, t in enumerate(graph.tasks) if t.kind == "F"},
            {(0, 0): 2 * 100 * of_layer, (1, 0): 700 * of_layer,
             (2, 0): 700 * of_layer, (1, 1): 300 * of_layer,
             (2, 1): 300 * of_layer})
        if not os.access(BINARY, os.X_OK):
            return
        orders = local.search_orders(
            BINARY, graph, 3, evaluations=100, activation_bytes=kept,
            memory_limit_bytes=2 * 700 * of_layer)
        searched = local.plan_of(graph, orders, ("vision", "text"),
                                 microbatches, "search")
        self.assertLessEqual(searched.predicted_step_time_ns,
                             plan.predicted_step_time_ns)


@unittest.skipUnless(HAVE_TORCH, "torch is missing")
@unittest.skipUnless(os.access(BINARY, os.X_OK), "no pipeloom binary")
class ModelFileTest(unittest.TestCase):

    def run_binary(self, *args):
        done = subprocess.run([BINARY, *args], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_the_planner_takes_a_captured_model(self):
        vision = capture.module(
            "vision", [Mlp() for _ in range(4)] + [Merge()], rows, SIZES,
            role="encoder", token_rules=[{
                "kind": "TOKEN_RULE_KIND_FIXED_SQUARE",
                "modality": "MODALITY_IMAGE", "side_px": 224, "patch_px": 14,
                "merge": 2}])
        text = capture.module(
            "text", [Mlp() for _ in range(8)] + [nn.Linear(WIDTH, VOCAB)],
            rows, SIZES, loss=lambda y: y.square().mean())
        with tempfile.TemporaryDirectory() as folder:
            def at(name):
                return os.path.join(folder, name)

            capture.save(at("model.json"), "mine", [vision, text],
                         [("vision", "text")])
            with open(at("job.json"), "w", encoding="utf-8") as file:
                json.dump({"name": "job", "model": "model.json",
                           "cluster": "h100-sxm", "parallel": {"pp": 2},
                           "training": {"microbatches": 4,
                                        "microbatch_tokens": 4096}}, file)
            with open(at("batch.jsonl"), "w", encoding="utf-8") as file:
                for i in range(40):
                    file.write(json.dumps({"text_tokens": 100 + 7 * i,
                                           "images": [[64, 64]] * (i % 3)}) +
                               "\n")
            shown = json.loads(self.run_binary(
                "plan", at("job.json"), "--batch", at("batch.jsonl"),
                "--evaluations", "50", "--format", "json"))
            self.assertIn("step_time_us", json.dumps(shown))
            # Read, and refused, as no GPU takes so long.
            slow = dataclasses.replace(text, device="cpu", times=(
                capture.Timed(4096, 4, 4096, 1e5, 2e5),))
            capture.save_times(at("times.json"), [slow])
            done = subprocess.run(
                [BINARY, "plan", at("job.json"), "--batch", at("batch.jsonl"),
                 "--evaluations", "50", "--costs-from", at("times.json")],
                capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, "forwards of text take 1e.11 us on "
                             "cpu, .* as priced for h100-sxm; .* must be in")
            words = self.run_binary("validate", at("model.json"))
            self.assertIn("OK, model mine", words)


if __name__ == "__main__":
    unittest.main()
