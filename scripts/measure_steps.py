#!/usr/bin/env python3
"""Measures training steps of published models on one GPU and writes a table that
`pipeloom backtest` reads.

    scripts/measure_steps.py --out steps.csv                # all runs, 15 minutes
    scripts/measure_steps.py --out steps.csv --only qwen3   # runs with it in the name
    scripts/measure_steps.py --list                         # names only; no torch
    scripts/measure_steps.py --rows steps.csv               # rows without times
    pipeloom backtest steps.csv

Needs torch, transformers, and diffusers for the diffusion models. Models are
made from their published configurations (tests/model_config/configs.json) with
random weights, so nothing is downloaded. Each run trains as a plain PyTorch
program does: weights and gradients in bf16, the library's own attention
through torch's scaled_dot_product_attention, AdamW in one fused call. A step is
timed by the host's clock from one synchronisation to the next; the median
of several counts. Peak memory is what torch's allocator had handed out. Each
run has a process of its own, so that one that fails spoils no other.

--profile FOLDER also writes, a run, the kernels of one step (name, count, us)
and the host's time for forward, backward and optimizer.
--device cpu with --small runs each model with two layers: a smoke test.
"""

import argparse
import csv
import json
import os
import statistics
import sys
import time

sys.dont_write_bytecode = True  # The source tree stays as it is.
from measure_gpu import device_name
from pytorch_runs import COLUMNS, RUNS, name_of, row_of

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONFIGS = os.path.join(ROOT, "tests", "model_config", "configs.json")

# ---- models ------------------------------------------------------------------


def shrunk(config, layers):
  """Returns the configuration with `layers` layers in each stack."""
  result = {}
  for key, value in config.items():
    if isinstance(value, dict):
      value = shrunk(value, layers)
    elif key in ("num_hidden_layers", "depth", "num_layers",
                 "num_single_layers", "num_refiner_layers"):
      value = min(value, layers)
    elif key == "layer_types":
      value = value[:layers]
    elif key in ("fullatt_block_indexes", "deepstack_visual_indexes"):
      value = [i % layers for i in value]
    result[key] = value
  return result


def text_inputs(torch, r, device, vocab):
  ids = torch.randint(10, min(vocab, 30000), (r["batch"], r["tokens"]),
                      device=device)
  return {"input_ids": ids, "labels": ids}


def make_transformers(torch, r, config, device, dtype):
  """Returns (model, inputs of a step)."""
  import transformers
  config = dict(config)
  kind = config.pop("model_type")
  made = transformers.AutoConfig.for_model(kind, **config)
  made.use_cache = False
  attention = "eager" if kind == "gpt_oss" else "sdpa"
  is_text = "image" not in r
  auto = (transformers.AutoModelForCausalLM if is_text else
          transformers.AutoModelForImageTextToText)
  with torch.device(device):
    model = auto.from_config(made, dtype=dtype, attn_implementation=attention)
  if is_text:
    return model, text_inputs(torch, r, device, made.vocab_size)
  return model, image_inputs(torch, r, kind, made, device, dtype)


def image_inputs(torch, r, kind, made, device, dtype):
  """One image a sample, ahead of the text."""
  batch, side = r["batch"], r["image"]
  text = made.text_config if hasattr(made, "text_config") else made
  vision = made.vision_config
  more = {}
  if kind in ("qwen2_5_vl", "qwen3_vl"):
    patch, merge = vision.patch_size, vision.spatial_merge_size
    grid = side // patch // merge * merge
    width = vision.temporal_patch_size * patch * patch * 3
    more["pixel_values"] = torch.randn(batch * grid * grid, width,
                                       device=device, dtype=dtype)
    more["image_grid_thw"] = torch.tensor([[1, grid, grid]] * batch,
                                          device=device)
    tokens = (grid // merge)**2
  elif kind == "llava_onevision":
    # The whole image and one tile of the same size, as its processor has it.
    patch = vision.patch_size
    grid = vision.image_size // patch
    more["pixel_values"] = torch.randn(batch, 2, 3, vision.image_size,
                                       vision.image_size, device=device,
                                       dtype=dtype)
    more["image_sizes"] = torch.tensor([[side, side]] * batch, device=device)
    # The base, the tile and one new line a row.
    tokens = grid * grid + grid * (grid + 1)
  else:
    size = vision.image_size
    size = size[0] if isinstance(size, (list, tuple)) else size
    patch = vision.patch_size
    patch = patch[0] if isinstance(patch, (list, tuple)) else patch
    ratio = getattr(made, "downsample_ratio", 1)
    more["pixel_values"] = torch.randn(batch, 3, size, size, device=device,
                                       dtype=dtype)
    tokens = int((size // patch * ratio)**2)
  ids = torch.randint(10, min(text.vocab_size, 30000),
                      (batch, tokens + r["tokens"]), device=device)
  token = getattr(made, "image_token_id", None)
  if token is None:
    token = made.image_token_index
  ids[:, :tokens] = token
  if kind in ("qwen2_5_vl", "qwen3_vl"):
    types = torch.zeros_like(ids)
    types[:, :tokens] = 1
    more["mm_token_type_ids"] = types
  labels = ids.clone()
  labels[:, :tokens] = -100
  return dict(more, input_ids=ids, labels=labels)


class Generator:
  """Calls a diffusers transformer and a mean squared error."""

  def __init__(self, torch, model):
    self.torch = torch
    self.model = model

  def __call__(self, target=None, **inputs):
    out = self.model(return_dict=False, **inputs)[0]
    loss = self.torch.nn.functional.mse_loss(out.float(), target.float())
    return type("Output", (), {"loss": loss})


def make_diffusers(torch, r, config, device, dtype):
  import diffusers
  config = dict(config)
  kind = config.pop("_class_name")
  batch = r["batch"]
  with torch.device(device):
    model = getattr(diffusers, kind).from_config(config).to(dtype)

  def randn(*shape):
    return torch.randn(*shape, device=device, dtype=dtype)

  if kind == "FluxTransformer2DModel":
    side = r["image"] // 16
    ids = torch.zeros(side, side, 3, device=device)
    ids[..., 1] += torch.arange(side, device=device)[:, None]
    ids[..., 2] += torch.arange(side, device=device)[None]
    inputs = dict(
        hidden_states=randn(batch, side * side, config["in_channels"]),
        encoder_hidden_states=randn(batch, 512, config["joint_attention_dim"]),
        pooled_projections=randn(batch, config["pooled_projection_dim"]),
        timestep=torch.rand(batch, device=device),
        img_ids=ids.reshape(-1, 3), txt_ids=torch.zeros(512, 3, device=device),
        target=randn(batch, side * side, config["in_channels"]))
    if config.get("guidance_embeds"):
      inputs["guidance"] = torch.ones(batch, device=device)
    return model, inputs
  height, width, frames = r["video"]
  stride = 16 if r["config"] == "wan2.2-ti2v-5b" else 8  # Pixels of a latent.
  latent = (batch, config["in_channels"], (frames + 3) // 4, height // stride,
            width // stride)
  inputs = dict(hidden_states=randn(*latent),
                timestep=torch.full((batch,), 500, device=device),
                target=randn(*latent))
  if kind == "WanTransformer3DModel":
    inputs["encoder_hidden_states"] = randn(batch, 512, config["text_dim"])
    return model, inputs
  assert kind == "HunyuanVideoTransformer3DModel", kind
  inputs.update(
      encoder_hidden_states=randn(batch, 256, config["text_embed_dim"]),
      encoder_attention_mask=torch.ones(batch, 256, device=device),
      pooled_projections=randn(batch, config["pooled_projection_dim"]),
      guidance=torch.full((batch,), 6000.0, device=device))
  return model, inputs


def freeze(model, frozen):
  """Freezes the modules of a LLaVA model by their names in model files."""
  names = {"vision_encoder": ("vision_tower",), "backbone": ("language_model",
                                                             "lm_head")}
  for module in frozen.split("+"):
    for name, parameter in model.named_parameters():
      if any(part in name for part in names[module]):
        parameter.requires_grad_(False)


# ---- measuring ---------------------------------------------------------------


def measure(torch, r, configs, args):
  """Returns (median ms, peak GiB, kernels of a step, ms of the host for forward,
  backward and optimizer)."""
  torch.manual_seed(0)
  device = args.device
  dtype = torch.float32 if args.small else torch.bfloat16
  config = configs[r["config"]]
  layers = 2 if args.small else r.get("layers")
  if layers:
    config = shrunk(config, layers)
  if args.small:
    r = dict(r, batch=1)
    r["tokens"] = min(r["tokens"], 16)
    config = dict(config, vocab_size=min(config.get("vocab_size", 0), 1024))
    if "video" in r:
      r["video"] = (64, 64, 9)
    elif "image" in r:
      r["image"] = min(r["image"], 336)
  is_generator = "_class_name" in config
  if is_generator:
    torch.backends.cuda.enable_cudnn_sdp(False)
  make = make_diffusers if is_generator else make_transformers
  model, inputs = make(torch, r, config, device, dtype)
  model.train()
  if "frozen" in r:
    freeze(model, r["frozen"])
  if r.get("recompute"):
    if is_generator:
      model.enable_gradient_checkpointing()
    else:
      model.gradient_checkpointing_enable({"use_reentrant": False})
  optimizer = None
  if "optimizer=skipped" not in r.get("words", ""):
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=1e-5,
        fused=True)
  call = Generator(torch, model) if is_generator else model
  if r.get("compiled"):
    call = torch.compile(model)
  on_gpu = device != "cpu"

  host = []  # Until forward, backward, the rest have been launched; ms.

  def step():
    begin = time.perf_counter()
    loss = call(**inputs).loss
    forward = time.perf_counter()
    loss.backward()
    backward = time.perf_counter()
    if optimizer:
      optimizer.step()
    model.zero_grad(set_to_none=True)
    host.append([(forward - begin) * 1e3, (backward - forward) * 1e3,
                 (time.perf_counter() - backward) * 1e3])

  def sync():
    if on_gpu:
      torch.cuda.synchronize()

  step()
  sync()
  if on_gpu:
    torch.cuda.reset_peak_memory_stats()
  times = []
  began = time.monotonic()
  # Two steps warm up; then at least five, or as many as fit.
  least = 3 if args.small else 7
  while len(times) < least or (len(times) < 42 and
                               time.monotonic() - began < args.seconds):
    before = time.perf_counter()
    step()
    sync()
    times.append((time.perf_counter() - before) * 1e3)
    if time.monotonic() - began > 4 * args.seconds and len(times) >= 4:
      break
  peak = torch.cuda.max_memory_allocated() / (1 << 30) if on_gpu else 0
  launched = [statistics.median(ms) for ms in zip(*host[3:])]
  kernels = profile(torch, step, sync) if args.profile and on_gpu else []
  return statistics.median(times[2:]), peak, kernels, launched


def profile(torch, step, sync):
  """Returns the kernels of a step, the longest in sum first."""
  from torch.profiler import ProfilerActivity, profile as recorder
  with recorder(activities=[ProfilerActivity.CUDA]) as recorded:
    step()
    sync()
  sums = {}
  for event in recorded.events():
    if event.device_type != torch.autograd.DeviceType.CUDA:
      continue
    entry = sums.setdefault(event.name[:160], [0, 0.0])
    entry[0] += 1
    entry[1] += event.time_range.elapsed_us()
  return sorted(([name, count, round(us, 1)]
                 for name, (count, us) in sums.items()),
                key=lambda entry: -entry[2])


def in_process(function):
  """Returns what `function` returns in a process of its own, where CUDA may be
  initialised; raises RuntimeError with its message if it fails."""
  read, write_end = os.pipe()
  child = os.fork()
  if child == 0:
    os.close(read)
    status = 1
    try:
      with os.fdopen(write_end, "w") as pipe:
        try:
          json.dump({"result": function()}, pipe)
          status = 0
        except Exception as error:  # pylint: disable=broad-except
          json.dump({"error": f"{type(error).__name__}: "
                     f"{(str(error).splitlines() or [''])[0][:300]}"}, pipe)
    except KeyboardInterrupt:
      pass  # The parent says so.
    finally:
      os._exit(status)  # pylint: disable=protected-access
  os.close(write_end)
  with os.fdopen(read) as pipe:
    text = pipe.read()
  os.waitpid(child, 0)
  answer = json.loads(text or '{"error": "the process ended early"}')
  if "error" in answer:
    raise RuntimeError(answer["error"])
  return answer["result"]


def write(path, rows):
  """Writes to a temporary file and renames it, so that no half file stays."""
  with open(path + ".part", "w", newline="", encoding="utf-8") as file:
    file.write("# Measured step times, by scripts/measure_steps.py.\n")
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
  os.replace(path + ".part", path)


def main():
  parser = argparse.ArgumentParser(
      description="Measures training steps of published models on one GPU and "
      "writes a table that `pipeloom backtest` reads.")
  parser.add_argument("--out", default="steps.csv", help="the table")
  parser.add_argument("--only", default="",
                      help="runs whose name has one of these words, comma "
                      "separated")
  parser.add_argument("--list", action="store_true",
                      help="print the names of the runs and stop")
  parser.add_argument("--rows", metavar="FILE",
                      help="write the rows, each with a step of 1 ms, and "
                      "stop: what `backtest` predicts needs no GPU")
  parser.add_argument("--cluster", help="the cluster's name or file; default: "
                      "of the GPU")
  parser.add_argument("--profile", metavar="FOLDER",
                      help="write the kernels of one step of each run there")
  parser.add_argument("--seconds", type=float, default=4,
                      help="time spent on the steps of one run, about")
  parser.add_argument("--limit", type=float, default=3600,
                      help="begin no run after so many seconds")
  parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
  parser.add_argument("--small", action="store_true",
                      help="two layers and few tokens: a smoke test")
  args = parser.parse_args()
  with open(CONFIGS, encoding="utf-8") as file:
    configs = json.load(file)
  words = [w for w in args.only.split(",") if w]
  runs = [r for r in RUNS
          if not words or any(w in name_of(r) for w in words)]
  if not runs:
    parser.error(f"--only has \"{args.only}\"; no run's name has it. --list "
                 "prints the names")
  if args.list:
    print("\n".join(map(name_of, runs)))
    return 0
  if args.rows:
    write(args.rows, [dict(row_of(r, args.cluster or "h200-sxm", configs),
                           step_ms=1) for r in runs])
    return 0
  try:
    import torch
    # Once for all processes; diffusers would initialise CUDA here.
    import transformers  # pylint: disable=unused-import
  except ImportError as error:
    print(f"measure_steps.py: {error.name} is not installed; `pip install "
          "torch transformers diffusers`", file=sys.stderr)
    return 1
  cluster = args.cluster or "h200-sxm"
  if args.device == "cuda":
    try:
      name = in_process(lambda: device_name(torch, args.device))
    except RuntimeError as error:
      print(f"measure_steps.py: torch sees no CUDA device: {error}",
            file=sys.stderr)
      return 1
    cluster = args.cluster or name
    shipped = os.path.join(ROOT, "workloads", "clusters", cluster + ".json")
    if not args.cluster and not os.path.exists(shipped):
      parser.error(f"no cluster file of a {name} is shipped; give --cluster")
  folder = os.path.dirname(args.out) or "."
  if not os.path.isdir(folder):
    parser.error(f"--out has \"{args.out}\", but there is no folder {folder}")
  if args.profile:
    os.makedirs(args.profile, exist_ok=True)
  rows, failed = [], 0
  began = time.monotonic()
  for r in runs:
    if time.monotonic() - began > args.limit:
      print(f"{name_of(r)}: left out, the time is over", file=sys.stderr)
      continue
    try:
      ms, peak, kernels, host = in_process(
          lambda: measure(torch, r, configs, args))  # pylint: disable=W0640
    except RuntimeError as error:
      failed += 1
      print(f"{name_of(r)}: {error}", file=sys.stderr)
      continue
    row = dict(row_of(r, cluster, configs), step_ms=round(ms, 2))
    if args.device == "cuda":
      row["peak_gib"] = round(peak, 2)
    rows.append(row)
    write(args.out, rows)
    if args.profile and kernels:
      path = os.path.join(args.profile, name_of(r).replace(" ", "_") + ".json")
      with open(path, "w", encoding="utf-8") as file:
        json.dump({"run": name_of(r), "step_ms": ms, "peak_gib": peak,
                   "host_ms": host, "kernels": kernels}, file)
    print(f"{name_of(r)}: {ms:.2f} ms, {peak:.2f} GiB, "
          f"{time.monotonic() - began:.0f} s in all", file=sys.stderr)
  print(f"{args.out}: {len(rows)} rows, {failed} failed")
  return 0 if rows and not failed else 1


if __name__ == "__main__":
  try:
    sys.exit(main())
  except KeyboardInterrupt:  # The rows so far are in the table.
    print("measure_steps.py: stopped", file=sys.stderr)
    sys.exit(130)
