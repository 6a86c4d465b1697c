#!/usr/bin/env python3
"""Measures operators on one GPU and writes the CSVs of `pipeloom calibrate`.

    scripts/measure_gpu.py --out measured            # about 15 minutes
    scripts/measure_gpu.py --out measured --quick    # about 2 minutes
    scripts/measure_gpu.py --list --quick            # shapes only; no torch
    pipeloom calibrate measured/*.csv --device NAME --out FILE

Needs Python 3.8 and torch 2.1 or later, and nothing else. One file a group of
operators: gemm, unaligned (widths that are no multiple of 8), grouped (experts),
attention, streaming (norms, activations, rotary embedding, add, softmax,
embedding, optimizer), small (launch-bound layers). The formats are in
docs/calibration.md.

How: each operator warms up until two blocks of calls agree, then blocks of
calls are timed with CUDA events and the median block counts. Operands rotate
through buffers larger than the L2 cache, and are random (zeros draw less
power, so that clocks rise). Clocks are read before and after and written into
the `note` column; lock them if you can (nvidia-smi -lgc). With --device cpu
the same code runs on the processor: a smoke test, of no use for calibration.
"""

import argparse
import csv
import math
import os
import random
import statistics
import subprocess
import sys
import time

GIB = 1 << 30
# Total size of the operands that are used in turn; exceeds any L2 cache.
ROTATE_BYTES = 256 << 20


# ---- shapes to measure: plain data, no torch -------------------------------


def gemm_shapes(quick, small):
  """Returns (m tokens, n outputs, k inputs) of layers of real models and of a
  grid."""
  if small:
    return [(64, 96, 128), (128, 64, 96), (33, 64, 64)]
  tokens = [128, 1024, 4096, 8192] if quick else [
      64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384,
      32768
  ]
  pairs = [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336),
           (10240, 8192), (57344, 8192), (8192, 28672), (1280, 1280),
           (3840, 1280), (5120, 1280)]
  if not quick:
    widths = [512, 768, 1024, 1536, 2048, 2560, 3072, 3584, 5120, 7168]
    pairs += [(n, k) for n in widths for k in widths if (n + k) % 1536 == 0]
    pairs += [(3 * w, w) for w in widths] + [(4 * w, w) for w in widths]
    pairs += [(w, 4 * w) for w in widths] + [(128256, 4096), (152064, 5120)]
  return [(m, n, k) for n, k in dict.fromkeys(pairs) for m in tokens]


def unaligned_shapes(quick, small):
  """Returns (m tokens, n outputs, k inputs) with widths that are no multiple of
  8, and their neighbours that are. Not for `calibrate`, which takes neighbours
  for alike."""
  if small:
    return [(64, 97, 128), (64, 96, 128)]
  pairs = [(50257, 4096), (50304, 4096), (3420, 1280), (3840, 1280)]
  if not quick:
    pairs += [(50257, 1024), (50304, 1024), (151655, 2048), (151656, 2048),
              (50258, 4096), (1280, 3420), (1280, 3840), (6840, 1280)]
  tokens = [1024, 8192] if quick else [64, 256, 1024, 2048, 4096, 8192, 16384]
  return [(m, n, k) for n, k in pairs for m in tokens]


def grouped_shapes(quick, small):
  """Returns (groups, m tokens of a group, n outputs, k inputs) of experts of
  real models."""
  if small:
    return [(4, 16, 64, 32)]
  pairs = [(128, 1536, 2048), (128, 2048, 768), (32, 5760, 2880),
           (32, 2880, 2880), (8, 28672, 4096), (8, 4096, 14336)]
  if not quick:
    pairs += [(16, 1536, 2048), (16, 2048, 768), (16, 4096, 7168),
              (16, 7168, 2048), (64, 2816, 2048), (64, 2048, 1408)]
  tokens = [64, 1024] if quick else [16, 64, 128, 256, 512, 1024, 2048, 4096]
  return [(g, m, n, k) for g, n, k in pairs for m in tokens if g * m <= 131072]


def attention_shapes(quick, small):
  """Returns tuples (batch, seq, heads, kv_heads, head_dim, mask)."""
  if small:
    return [(1, 64, 4, 2, 32, "causal"), (2, 48, 4, 4, 16, "full")]
  lengths = [1024, 4096, 8192] if quick else [
      256, 512, 1024, 2048, 4096, 8192, 16384, 32768
  ]
  heads = [(32, 8, 128), (16, 16, 64)] if quick else [
      (64, 8, 128), (32, 8, 128), (32, 32, 128), (16, 16, 128), (8, 1, 128),
      (16, 16, 64), (32, 32, 64), (16, 16, 80), (16, 16, 72), (8, 8, 256)
  ]
  shapes = []
  for query, kv, dim in heads:
    for seq in lengths:
      for mask in ("causal", "full"):
        # A batch of 16,384 tokens, or one sequence.
        shapes.append((max(1, 16384 // seq), seq, query, kv, dim, mask))
        if seq <= 4096 and not quick:
          shapes.append((1, seq, query, kv, dim, mask))
  return list(dict.fromkeys(shapes))


def streaming_shapes(quick, small):
  """Returns pairs (op, fields)."""
  if small:
    tokens, widths, parameters = [64], [128], [100_000]
  elif quick:
    tokens, widths, parameters = [1024, 16384], [4096], [100_000_000]
  else:
    tokens = [16, 128, 512, 2048, 8192, 16384, 32768]
    widths = [1024, 1280, 2048, 4096, 5120, 8192]
    parameters = [1_000_000, 10_000_000, 100_000_000, 1_000_000_000]
  shapes = []
  for t in tokens:
    for w in widths:
      for op in ("rmsnorm", "layernorm", "add", "embedding", "softmax"):
        shapes.append((op, {"tokens": t, "width": w}))
      for op in ("swiglu", "gelu"):
        shapes.append((op, {"tokens": t, "width": 4 * w}))
      shapes.append(("rope", {"tokens": t, "width": w}))
  shapes += [("optimizer", {"parameters": p}) for p in parameters]
  return shapes


def small_shapes(quick, small):
  """Returns (tokens, width, heads, ffn) of layers short enough to wait for the
  host."""
  if small:
    return [(16, 64, 2, 128)]
  shapes = [(16, 256, 4, 1024), (64, 512, 8, 2048)]
  if not quick:
    shapes += [(64, 1024, 16, 4096), (256, 1024, 16, 4096),
               (256, 1280, 16, 5120)]
  return shapes


COLUMNS = {
    "gemm": ["m", "n", "k"],
    "unaligned": ["m", "n", "k"],
    "grouped": ["groups", "m", "n", "k"],
    "attention": ["batch", "seq", "heads", "kv_heads", "head_dim", "mask"],
    "streaming": ["tokens", "width", "parameters"],
    "small": ["tokens", "width", "heads", "ffn", "kernels"],
}


# ---- measuring -------------------------------------------------------------


class Meter:
  """Times calls on one device."""

  def __init__(self, torch, device, dtype, seconds):
    self.torch = torch
    self.device = device
    self.dtype = dtype
    self.seconds = seconds  # About the time spent on one operator.

  def randn(self, *shape, dtype=None, grad=False):
    t = self.torch.randn(*shape, device=self.device, dtype=dtype or self.dtype)
    return t.requires_grad_(grad)

  def copies(self, bytes_each):
    """Returns the number of operand sets that exceed the L2 cache."""
    if self.device == "cpu":
      return 1
    return max(1, min(64, math.ceil(ROTATE_BYTES / max(bytes_each, 1))))

  def sync(self):
    if self.device != "cpu":
      self.torch.cuda.synchronize()

  def block(self, call, count):
    """Returns the us per call over `count` calls back to back."""
    if self.device == "cpu":
      begin = time.perf_counter()
      for i in range(count):
        call(i)
      return (time.perf_counter() - begin) * 1e6 / count
    start = self.torch.cuda.Event(enable_timing=True)
    end = self.torch.cuda.Event(enable_timing=True)
    self.sync()
    start.record()
    for i in range(count):
      call(i)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / count

  def graphed(self, call, count):
    """Captures `count` calls as one CUDA graph, which excludes host time."""
    if self.device == "cpu":
      return None
    try:
      side = self.torch.cuda.Stream()
      side.wait_stream(self.torch.cuda.current_stream())
      with self.torch.cuda.stream(side):
        for i in range(min(count, 3)):
          call(i)
      self.torch.cuda.current_stream().wait_stream(side)
      graph = self.torch.cuda.CUDAGraph()
      with self.torch.cuda.graph(graph):
        for i in range(count):
          call(i)
      return graph
    except RuntimeError:  # Not every operator can be captured.
      self.sync()
      return None

  def time(self, call, graph=True):
    """Returns the median us per call; None if it does not run (memory, no
    kernel)."""
    try:
      call(0)
      self.sync()
      first = self.block(call, 2)
      count = max(1, min(200, int(self.seconds * 1e6 / 12 / max(first, 1))))
      captured = self.graphed(call, count) if graph and first < 1000 else None

      def block():
        if captured is None:
          return self.block(call, count)
        return self.block(lambda _: captured.replay(), 1) / count

      previous = math.inf
      for _ in range(20):  # Warm when two blocks are within 3 %.
        now = block()
        if abs(now - previous) <= 0.03 * now:
          break
        previous = now
      return statistics.median(block() for _ in range(9))
    except (RuntimeError, NotImplementedError) as error:
      print(f"  left out: {str(error).splitlines()[0][:90]}", file=sys.stderr)
      if self.device != "cpu":
        self.torch.cuda.empty_cache()
      return None


def measure_gemm(meter, shapes):
  """Measures forward C = A W^T, input gradient dC W, weight gradient
  dC^T A."""
  torch = meter.torch
  for m, n, k in shapes:
    if 2 * (m * k + n * k + m * n) > 24 * GIB:
      continue
    sets = meter.copies(2 * (m * k + n * k + m * n))
    a = [meter.randn(m, k) for _ in range(sets)]
    w = [meter.randn(n, k) for _ in range(sets)]
    c = [meter.randn(m, n) for _ in range(sets)]
    calls = {
        "forward": lambda i: torch.mm(a[i % sets], w[i % sets].t()),
        "input_grad": lambda i: torch.mm(c[i % sets], w[i % sets]),
        "weight_grad": lambda i: torch.mm(c[i % sets].t(), a[i % sets]),
    }
    for name, call in calls.items():
      us = meter.time(call)
      if us is not None:
        yield {"op": "gemm", "pass": name, "m": m, "n": n, "k": k}, us
    del a, w, c


def measure_grouped(meter, shapes):
  """Measures the products of experts with equal numbers of tokens."""
  torch = meter.torch
  multiply = getattr(torch, "_grouped_mm", None)
  if multiply is None:
    print("  left out: this torch has no grouped products", file=sys.stderr)
    return
  for groups, m, n, k in shapes:
    sets = meter.copies(2 * groups * (m * k + n * k + m * n))
    a = [meter.randn(groups * m, k) for _ in range(sets)]
    w = [meter.randn(groups, n, k) for _ in range(sets)]
    c = [meter.randn(groups * m, n) for _ in range(sets)]
    ends = torch.arange(m, groups * m + 1, m, device=meter.device,
                        dtype=torch.int32)
    calls = {
        "forward": lambda i: multiply(
            a[i % sets], w[i % sets].transpose(1, 2), offs=ends),
        "input_grad": lambda i: multiply(c[i % sets], w[i % sets], offs=ends),
        "weight_grad": lambda i: multiply(c[i % sets].t(), a[i % sets],
                                          offs=ends),
    }
    for name, call in calls.items():
      us = meter.time(call)
      if us is not None:
        yield {"op": "grouped_gemm", "pass": name, "groups": groups, "m": m,
               "n": n, "k": k}, us
    del a, w, c


def measure_attention(meter, shapes):
  torch = meter.torch
  attend = torch.nn.functional.scaled_dot_product_attention
  for batch, seq, heads, kv_heads, dim, mask in shapes:
    fields = {
        "op": "attention", "batch": batch, "seq": seq, "heads": heads,
        "kv_heads": kv_heads, "head_dim": dim, "mask": mask
    }
    q = meter.randn(batch, heads, seq, dim, grad=True)
    k, v = (meter.randn(batch, kv_heads, seq, dim, grad=True)
            for _ in range(2))
    groups = heads // kv_heads

    def forward(_=0):
      # expand makes no copies in kernels that support grouped heads.
      kk, vv = k, v
      if groups > 1:
        kk = k.repeat_interleave(groups, dim=1)
        vv = v.repeat_interleave(groups, dim=1)
      return attend(q, kk, vv, is_causal=mask == "causal")

    if groups > 1 and meter.device != "cpu":
      try:
        attend(q, k, v, is_causal=mask == "causal", enable_gqa=True)

        def forward(_=0):  # pylint: disable=function-redefined
          return attend(q, k, v, is_causal=mask == "causal", enable_gqa=True)
      except (RuntimeError, TypeError):
        pass

    def forward_only(_):
      with torch.no_grad():
        forward()

    us = meter.time(forward_only)
    if us is None:
      continue
    yield dict(fields, **{"pass": "forward"}), us
    try:
      out = forward()
      grad = torch.randn_like(out)
    except RuntimeError:
      continue
    us = meter.time(
        lambda _: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True),
        graph=False)
    if us is not None:
      yield dict(fields, **{"pass": "backward"}), us
    del out, grad, q, k, v


def streaming_call(meter, op, fields):
  """Returns (function of operands, operands that need gradients)."""
  torch = meter.torch
  f = torch.nn.functional
  t, w = fields["tokens"], fields["width"]
  if op == "rmsnorm":
    weight = meter.randn(w, grad=True)
    if hasattr(f, "rms_norm"):
      return (lambda x: f.rms_norm(x, (w,), weight)), [(t, w)], [weight]
    return (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6) * weight
           ), [(t, w)], [weight]
  if op == "layernorm":
    weight, bias = meter.randn(w, grad=True), meter.randn(w, grad=True)
    return (lambda x: f.layer_norm(x, (w,), weight, bias)), [(t, w)], [
        weight, bias
    ]
  if op == "add":
    return (lambda x, y: x + y), [(t, w), (t, w)], []
  if op == "softmax":
    return (lambda x: torch.softmax(x, -1)), [(t, w)], []
  if op == "gelu":
    return (lambda x: f.gelu(x, approximate="tanh")), [(t, w)], []
  if op == "swiglu":  # `width` is the result's; the input has both halves.
    return (lambda x: f.silu(x[:, :w]) * x[:, w:]), [(t, 2 * w)], []
  if op == "rope":
    cos, sin = meter.randn(t, w), meter.randn(t, w)

    def rotate(x):
      half = w // 2
      turned = torch.cat((-x[:, half:], x[:, :half]), -1)
      return x * cos + turned * sin

    return rotate, [(t, w)], []
  if op == "embedding":
    table = meter.randn(32768 if meter.device != "cpu" else 512, w, grad=True)
    ids = torch.randint(0, table.shape[0], (t,), device=meter.device)
    return (lambda: f.embedding(ids, table)), [], [table]
  raise ValueError(op)


def measure_streaming(meter, shapes):
  torch = meter.torch
  for op, fields in shapes:
    row = dict(fields, op=op)
    if op == "optimizer":
      count = fields["parameters"]
      if count * 18 > 100 * GIB:
        continue
      parameter = torch.nn.Parameter(meter.randn(count, dtype=torch.float32))
      parameter.grad = meter.randn(count, dtype=torch.float32)
      fused = {} if meter.device == "cpu" else {"fused": True}
      adam = torch.optim.AdamW([parameter], lr=1e-4, **fused)
      us = meter.time(lambda _: adam.step(), graph=False)
      if us is not None:
        yield dict(row, **{"pass": "forward", "dtype": "fp32"}), us
      del parameter, adam
      continue
    function, shapes_in, weights = streaming_call(meter, op, fields)
    sets = meter.copies(2 * sum(a * b for a, b in shapes_in))
    inputs = [[meter.randn(*s, grad=True) for s in shapes_in]
              for _ in range(sets)]

    def forward(i):
      with torch.no_grad():
        function(*inputs[i % sets])

    us = meter.time(forward)
    if us is not None:
      yield dict(row, **{"pass": "forward"}), us
    out = function(*inputs[0])
    grad = torch.randn_like(out)
    leaves = inputs[0] + weights
    us = meter.time(
        lambda _: torch.autograd.grad(out, leaves, grad, retain_graph=True),
        graph=False)
    if us is not None:
      yield dict(row, **{"pass": "backward"}), us
    del inputs, out, grad


def measure_small(meter, shapes):
  """Measures a small layer in eager mode, for the host time per kernel."""
  torch = meter.torch
  for tokens, width, heads, ffn in shapes:
    layer = torch.nn.TransformerEncoderLayer(
        width, heads, ffn, dropout=0.0, batch_first=True, norm_first=True,
        device=meter.device, dtype=meter.dtype)
    x = meter.randn(1, tokens, width, grad=True)
    kernels = 0
    if meter.device != "cpu":
      from torch.profiler import ProfilerActivity, profile
      layer(x)
      meter.sync()
      with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        layer(x)
        meter.sync()
      kernels = sum(1 for e in recorded.events()
                    if "Memcpy" not in e.name and "Memset" not in e.name)
    us = meter.time(lambda _: layer(x), graph=False)
    if us is not None:
      yield {
          "op": "small_layer", "pass": "forward", "tokens": tokens,
          "width": width, "heads": heads, "ffn": ffn,
          "kernels": max(kernels, 1)
      }, us


# ---- files -----------------------------------------------------------------


def clocks():
  """Returns for example "sm 1980 MHz, 62 C, 550 W", or nothing."""
  try:
    text = subprocess.run(
        ["nvidia-smi", "--query-gpu=clocks.sm,temperature.gpu,power.draw",
         "--format=csv,noheader,nounits", "-i", "0"],
        capture_output=True, text=True, timeout=20, check=True).stdout
    sm, heat, power = (x.strip() for x in text.splitlines()[0].split(","))
    return f"sm {sm} MHz {heat} C {power} W"
  except (OSError, subprocess.SubprocessError, ValueError, IndexError):
    return ""


def device_name(torch, device):
  """Returns the name of the GPU for `pipeloom calibrate --device`."""
  if device == "cpu":
    return "cpu"
  name = torch.cuda.get_device_name(0).upper()
  for part in ("A100", "A800", "H100", "H200", "H800", "B200"):
    if part in name:
      return f"{part.lower()}-{'pcie' if 'PCIE' in name else 'sxm'}"
  for part in ("H20", "L40S"):
    if part in name:
      return part.lower()
  return name.lower().replace(" ", "-")


def write(path, group, rows, device, dtype):
  """Writes to a temporary file and renames it, so that no half file stays."""
  columns = (["op", "device", "dtype", "pass"] + COLUMNS[group] +
             ["time_us", "note"])
  temporary = path + ".part"
  count = 0
  with open(temporary, "w", newline="", encoding="utf-8") as file:
    writer = csv.DictWriter(file, columns, restval="")
    writer.writeheader()
    before = clocks()
    for fields, us in rows:
      if count % 50 == 0:
        before = clocks()
      row = {"device": device, "dtype": dtype, "note": before}
      row.update(fields)
      row["time_us"] = f"{us:.3f}"
      writer.writerow(row)
      file.flush()
      count += 1
      if count % 50 == 0:
        print(f"  {group}: {count} rows", file=sys.stderr)
  os.replace(temporary, path)
  print(f"{path}: {count} rows")


def main():
  parser = argparse.ArgumentParser(
      description="Measures operators on one GPU and writes the CSVs that "
      "`pipeloom calibrate` reads.")
  parser.add_argument("--out", default="measured", help="folder of the CSVs")
  parser.add_argument("--only", default="gemm,unaligned,grouped,attention,streaming,small",
                      help="groups to measure, comma separated")
  parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp16"])
  parser.add_argument("--attention", default="torch",
                      choices=["torch", "cudnn", "flash", "efficient"],
                      help="the attention's kernel; default: torch's choice")
  parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
  parser.add_argument("--name", help="the GPU's name in the CSVs; default: "
                      "from the driver")
  parser.add_argument("--seconds", type=float, default=0.15,
                      help="time spent on one operator, about")
  parser.add_argument("--seed", type=int, default=0,
                      help="of the order of shapes and of the operands")
  parser.add_argument("--quick", action="store_true",
                      help="few shapes: shows that all is well")
  parser.add_argument("--list", action="store_true",
                      help="print the shapes and stop; needs no torch")
  args = parser.parse_args()

  small = args.device == "cpu"
  plan = {
      "gemm": (gemm_shapes, measure_gemm),
      "unaligned": (unaligned_shapes, measure_gemm),
      "grouped": (grouped_shapes, measure_grouped),
      "attention": (attention_shapes, measure_attention),
      "streaming": (streaming_shapes, measure_streaming),
      "small": (small_shapes, measure_small),
  }
  groups = [g for g in args.only.split(",") if g]
  for group in groups:
    if group not in plan:
      parser.error(f"--only has \"{group}\"; it must be of " +
                   ", ".join(plan))
  if args.list:
    for group in groups:
      shapes = plan[group][0](args.quick, small)
      print(f"{group}: {len(shapes)} shapes")
      for shape in shapes:
        print("  ", shape)
    return 0

  try:
    import torch
  except ImportError:
    print("measure_gpu.py: torch is not installed; `pip install torch`",
          file=sys.stderr)
    return 1
  if args.device == "cuda" and not torch.cuda.is_available():
    print("measure_gpu.py: torch sees no CUDA device", file=sys.stderr)
    return 1
  torch.manual_seed(args.seed)
  torch.backends.cuda.matmul.allow_tf32 = False
  if args.attention != "torch":
    for name in ("cudnn", "flash", "mem_efficient", "math"):
      getattr(torch.backends.cuda, f"enable_{name}_sdp")(
          name == args.attention or name == f"mem_{args.attention}")
  dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[args.dtype]
  if small:
    dtype = torch.float32
  label = "fp32" if small else args.dtype
  meter = Meter(torch, args.device, dtype, 0.01 if small else args.seconds)
  name = args.name or device_name(torch, args.device)
  os.makedirs(args.out, exist_ok=True)
  print(f"{name}, torch {torch.__version__}, {clocks() or 'clocks unknown'}",
        file=sys.stderr)
  # Heats the GPU before the first row.
  square = meter.randn(256 if small else 8192, 256 if small else 8192)
  begin = time.monotonic()
  while time.monotonic() - begin < (0.1 if small else 3):
    square @ square  # pylint: disable=pointless-statement
    meter.sync()
  del square
  for group in groups:
    shapes_of, measure = plan[group]
    shapes = shapes_of(args.quick, small)
    # With a random order, a drift of the clocks gives noise but no trend.
    random.Random(args.seed).shuffle(shapes)
    write(os.path.join(args.out, group + ".csv"), group,
          measure(meter, shapes), name, label)
  return 0


if __name__ == "__main__":
  sys.exit(main())
