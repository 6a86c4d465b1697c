#!/usr/bin/env python3
"""Derives workloads/profiles/*.json, the operator tables of device profiles.

    scripts/derive_profiles.py --data DIR --into workloads/profiles \
        --tool build/benchmarks/profile_accuracy
    scripts/derive_profiles.py --data DIR --check \
        --tool build/benchmarks/profile_accuracy [--fold 0]

DIR holds the public measurements as CSV (its gzipped files end in .gz):
    gemm/gemm_DEVICE_TYPE_*.csv.gz          m,n,k,us            [1]
    attention/attn_{causal,encoder}_fwd_*   batch,seq,heads,... [1]
    attention/sdpa_*.csv                    cuDNN, forward and backward [2]
    norms/norms__*.csv                      norms, forward and backward [2]
    train_ops/simumax_*.csv                 layouts of training, grouped [3]
    vidur/mlp_{a100,h100}_*.csv             activation, rope, add, embedding [4]
[1] NVIDIA AIConfigurator @095f58a5, Apache-2.0   [2] NVIDIA cudnn-frontend
@3929da2e and earlier, MIT   [3] SimuMax @4dcaae51, Apache-2.0
[4] microsoft/vidur @7d475133, MIT

What is done: some of the row counts are left out, times are rounded to three
digits, medians taken of repeated rows. The constants of the kernel models are
fitted by the tool (emulator/cost/gemm_cost.h). A member "collectives" that a file
has stays (derive_collectives.py).

--check leaves every fifth site out, by a hash, and prints the errors on it: a
site is a pair (n, k), or heads with their dimension, so all its points are
unseen. It also predicts the H200 from the H100's profile.
"""

import argparse
import csv
import glob
import gzip
import json
import math
import os
import re
import statistics
import subprocess
import tempfile
import zlib

# Dense FLOP/s of bf16 and fp8, bytes/s, multiprocessors: data sheets.
RATES = {
    "a100-sxm": (312e12, 0, 2.039e12, 108),
    "h100-sxm": (989e12, 1978e12, 3.35e12, 132),
    "h200-sxm": (989e12, 1978e12, 4.8e12, 132),
    "b200-sxm": (2250e12, 4500e12, 7.7e12, 148),
    "l40s": (362e12, 733e12, 0.864e12, 142),
}
# Devices that use another's tables, and their numbers of multiprocessors.
DERIVED = {"a800-sxm": ("a100-sxm", 108), "h800-sxm": ("h100-sxm", 132),
           "h20": ("h100-sxm", 78)}

# Row counts of products that are kept; a file has up to 74.
KEPT_M = {
    "bf16": [1, 2, 4, 8, 16, 32, 33, 48, 64, 65, 80, 96, 112, 128, 129, 160,
             192, 224, 256, 257, 384, 512, 513, 768, 1024, 1025, 1280, 1536,
             1537, 1792, 2048, 2049, 2304, 2560, 2816, 3072, 3584, 4096, 4097,
             4352, 8192, 16384, 32768],
    "fp8": [1, 4, 16, 32, 64, 96, 128, 192, 256, 257, 512, 768, 1024, 1025,
            1280, 1536, 1792, 2048, 2304, 2560, 3072, 3584, 4096, 8192, 16384,
            32768],
}


# Ratio of the times of attention backward on a B200 and on a GB200: mean over
# 16,384 to 131,072 tokens, 128 heads of 128 (sdpa_bf16_*.csv [2]; the ratio of
# the data sheets' rates is 1.11). Shorter rows of the B200's file wait for the
# host.
GB200_OVER_B200 = 1.18
LONG_TOKENS = 16384

# A gradient that takes less than this share of its forward product shows that
# one of the two single measurements is off.
LEAST_GRADIENT = 0.87

# Token counts of vidur's rows that are kept.
STREAM_TOKENS = {64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768}


def rows(pattern):
  for path in sorted(glob.glob(pattern)):
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", newline="") as file:
      for row in csv.DictReader(file):
        row["file"] = os.path.basename(path)
        yield row


def rounded(us):
  return float(f"{us:.3g}")


class Tables:
  """Points indexed by table, then by (site, grid point)."""

  def __init__(self):
    self.tables = {}

  def add(self, kind, site, grid, us):
    points = self.tables.setdefault(kind, {})
    points.setdefault((site, grid), []).append(us)

  def section(self, name):
    names = {"gemm": (["m"], ["pass", "dtype"]),
             "attention": (["batch", "seq"], ["pass", "dtype", "mask"]),
             "stream": (["tokens"], ["op", "pass", "dtype"])}[name]
    texts = []
    for kind in sorted(k for k in self.tables if k[0] == name):
      points = {key: statistics.median_low(us)
                for key, us in self.tables[kind].items()}
      grid = sorted({g for _, g in points})
      sites = sorted({s for s, _ in points})
      lines = [", ".join(f'"{n}": "{v}"' for n, v in zip(names[1], kind[1:]))]
      for i, column in enumerate(names[0]):
        lines.append(f'"{column}": ' + json.dumps([g[i] for g in grid],
                                                  separators=(",", ":")))
      text = []
      for site in sites:
        us = [points.get((site, g), 0) for g in grid]
        text.append("[" + ",".join(f"{v:g}" for v in list(site) + us) + "]")
      lines.append('"sites": [\n' + ",\n".join(text) + "]")
      texts.append("{" + ",\n".join(lines) + "}")
    return texts


def seen(fold, *site):
  """Returns whether the fold's model may see the site; always true without a
  fold."""
  if fold is None:
    return True
  return zlib.crc32(",".join(map(str, site)).encode()) % 5 != fold


class Split:
  """Splits points between the tables of the model and those of the judge."""

  def __init__(self, fold):
    self.fold = fold
    self.model = Tables()
    self.judge = Tables()

  def add(self, kind, site, grid, us, hashed, thin=False):
    us = float(us)
    if not 0 < us < 1e12:
      return
    if not seen(self.fold, *hashed):
      self.judge.add(kind, site, grid, us)
    elif not thin:
      self.model.add(kind, site, grid, rounded(us))


def gemm(data, device, split):
  name = device.replace("-", "_")
  for file_type, dtype in (("bfloat16", "bf16"), ("fp8", "fp8")):
    for r in rows(f"{data}/gemm/gemm_{name}_{file_type}_vllm*.csv*"):
      m, n, k = int(r["m"]), int(r["n"]), int(r["k"])
      split.add(("gemm", "forward", dtype), (n, k, 1), (m,), r["us"], (n, k),
                m not in KEPT_M[dtype])


def forward_times(data, device):
  """Returns the time of a forward product (m, n, k), measured at the nearest m
  up to twice as large or small; None without one."""
  sites = {}
  for r in rows(f"{data}/gemm/gemm_{device.replace('-', '_')}_bfloat16_*.csv*"):
    sites.setdefault((int(r["n"]), int(r["k"])), {}).setdefault(
        int(r["m"]), []).append(float(r["us"]))

  def time(m, n, k):
    known = sites.get((n, k), {})
    if not known:
      return None
    near = min(known, key=lambda other: (abs(math.log(other / m)), other))
    if not m / 2 <= near <= m * 2:
      return None
    return statistics.median(known[near]) * m / near
  return time


def gradients(data, device, split):
  """SimuMax's machines run forward products slower than those of [1]: a PCIe
  board, or longer runs within the power limit. So gradients count relative to
  the forward product of the same sizes on the same machine."""
  board = {"a100-sxm": "A100-PCIe", "b200-sxm": "B200"}.get(device)
  if board is None:
    return
  dense = [r for r in rows(f"{data}/train_ops/simumax_gemm_train_bf16.csv")
           if r["gpu"] == board and int(r["b"]) == 1]
  there = {tuple(int(r[size]) for size in "mnk"): float(r["us"])
           for r in dense if r["layout"] == "TN"}
  here = forward_times(data, device)
  for r in dense:
    m, n, k = int(r["m"]), int(r["n"]), int(r["k"])
    if r["layout"] == "NN":
      # [tokens, inputs], summed over the outputs.
      name, product = "input_grad", (m, k, n)
    elif r["layout"] == "NT" and r["accumulate"] == "True":
      # [outputs, inputs], summed over the tokens.
      name, product = "weight_grad", (k, m, n)
    else:
      continue
    forward = here(*product)
    if forward is None or product not in there:
      continue
    ratio = float(r["us"]) / there[product]
    if ratio > LEAST_GRADIENT:
      tokens, *site = product
      split.add(("gemm", name, "bf16"), (*site, 1), (tokens,), forward * ratio,
                tuple(site))
  passes = {"fwd": "forward", "bwd_grad_act": "input_grad",
            "bwd_grad_w": "weight_grad"}
  if board != "B200":
    return
  for r in rows(f"{data}/train_ops/simumax_grouped_gemm_bf16.csv"):
    if r["gpu"] != board:
      continue
    m, n, k = int(r["M"]), int(r["N"]), int(r["K"])
    groups = int(r["num_groups"])
    if r["stage"] == "bwd_grad_act":
      n, k = k, n
    elif r["stage"] == "bwd_grad_w":
      m, n, k = k, m, n
    split.add(("gemm", passes[r["stage"]], "bf16"), (n, k, groups), (m,),
              r["us_assuming_M_per_group"], (n, k))


def attention(data, device, split):
  name = device.replace("-", "_")
  for kind, mask in (("causal", "causal"), ("encoder", "full")):
    for r in rows(f"{data}/attention/attn_{kind}_fwd_{name}_vllm*.csv*"):
      heads, dim = int(r["heads"]), int(r["head_dim"])
      kv = int(r.get("kv_heads") or heads)
      split.add(("attention", "forward", "bf16", mask),
                (heads, kv, dim, dim, 0), (int(r["batch"]), int(r["seq"])),
                r["us"], (heads, dim))
  gpu, scale = {"h200-sxm": ("NVIDIA H200", 1),
                "h100-sxm": ("NVIDIA H200", 1),
                "b200-sxm": ("NVIDIA GB200", GB200_OVER_B200)
               }.get(device, (None, 1))
  for r in rows(f"{data}/attention/sdpa_benchmark_training__*.csv"):
    if (gpu is None or r["gpu_name"] != gpu or r["data_type"] != "bfloat16" or
        r["backend"] != "cudnn" or r["success"] != "True" or
        r["q_seqlen"] != r["kv_seqlen"] or
        (r.get("sliding_window_size") or "0") not in ("0", "None") or
        r["deterministic_bwd"] == "True"):
      continue
    if "bwd_time_ms" in r:
      time = r["bwd_time_ms"]
    elif r["profile_pass"] == "bwd":
      time = r["time_ms"]
    else:
      continue
    mask = "causal" if r["attn_mask"] == "top_left" else "full"
    heads, dim = int(r["num_q_heads"]), int(r["head_dim_qk"])
    split.add(("attention", "backward", "bf16", mask),
              (heads, int(r["num_kv_heads"]), dim, int(r["head_dim_vo"]), 0),
              (int(r["batch_size"]), int(r["q_seqlen"])),
              float(time) * 1e3 * scale, (heads, dim))
  if device in ("h100-sxm", "h200-sxm"):
    for r in rows(f"{data}/attention/sdpa_2025_h200.csv"):
      batch, heads, seq, dim = (int(r[name]) for name in (
          "Batch", "Heads", "Sequence length", "Head dim"))
      causal = r["Causal"] == "True"
      flops = 10 * batch * heads * seq * seq * dim * (0.5 if causal else 1)
      split.add(("attention", "backward", "bf16",
                 "causal" if causal else "full"),
                (heads, heads, dim, dim, 0), (batch, seq),
                flops / float(r["cuDNN BF16 BWD (TFLOPs/s)"]) / 1e6,
                (heads, dim))
  if device == "b200-sxm":
    for r in rows(f"{data}/attention/sdpa_bf16_B200.csv"):
      if r["backend"] != "pyt_cudnn" or int(r["q_seqlen"]) < LONG_TOKENS:
        continue
      heads, dim = int(r["num_q_heads"]), int(r["head_dim"])
      split.add(("attention", "backward", "bf16",
                 "causal" if r["is_causal"] == "True" else "full"),
                (heads, int(r["num_kv_heads"]), dim, dim, 0),
                (int(r["batch_size"]), int(r["q_seqlen"])),
                float(r["backward_time"]) * 1e3, (heads, dim))
  board = {"a100-sxm": "A100-PCIe", "b200-sxm": "B200"}.get(device)
  for r in rows(f"{data}/train_ops/simumax_sdpa_causal_bf16.csv"):
    if r["gpu"] != board or r["qkv_contiguous"] != "True":
      continue
    heads, dim = int(r["heads"]), int(r["qk_dim"])
    split.add(("attention", "backward", "bf16", "causal"),
              (heads, int(r["kv_heads"]), dim, int(r["v_dim"]), 0),
              (int(r["batch"]), int(r["seq"])), r["bwd_us"], (heads, dim))


def carried(us, source, device):
  """Returns a memory-bound time on another device; 2 us of it do not scale."""
  ratio = RATES[source][2] / RATES[device][2]
  return 2 + max(us - 2, 0) * ratio


def streams(data, device, split):
  # cuDNN's norms, measured on the H200, or on a GB200 (8 TB/s) for the B200.
  gpu = "NVIDIA GB200" if device == "b200-sxm" else "NVIDIA H200"
  for r in rows(f"{data}/norms/norms__*.csv"):
    if r["gpu_name"] != gpu or r["backend"] != "cudnn":
      continue
    op = {"rms_norm": "rmsnorm", "layer_norm": "layernorm"}[r["norm_type"]]
    for column, name in (("fwd_time_ms", "forward"),
                         ("bwd_time_ms", "backward")):
      us = float(r[column]) * 1e3
      if not 0 < us < 1e9 or us < 10 and r["N"] != r["C"] and us <= 2:
        continue
      if device == "b200-sxm":
        us = 2 + max(us - 2, 0) * 8 / 7.7
      else:
        us = carried(us, "h200-sxm", device)
      split.add(("stream", op, name, "bf16"), (int(r["C"]),), (int(r["N"]),),
                us, (op, r["C"]))
  source = "a100" if device == "a100-sxm" else "h100"
  for r in rows(f"{data}/vidur/mlp_{source}_*.csv"):
    tokens = int(r["num_tokens"])
    if tokens not in STREAM_TOKENS:
      continue
    tp = int(r["num_tensor_parallel_workers"])
    width = int(r["n_embd"])
    head = width // int(r["n_head"])
    kv = max(int(r["n_kv_head"]) // tp, 1)
    gated = r["use_gated_mlp"] == "True"
    for column, op, of in (
        ("mlp_act_ms", "swiglu" if gated else "gelu",
         int(r["n_expanded_embd"]) // tp),
        ("attn_rope_ms", "rope", (int(r["n_head"]) // tp + kv) * head),
        ("add_ms", "add", width), ("emb_ms", "embedding", width)):
      if not r.get(column) or op == "embedding" and tp > 1:
        continue
      us = float(r[column]) * 1e3
      if source + "-sxm" != device:
        us = carried(us, "h100-sxm", device)
      split.add(("stream", op, "forward", "bf16"), (of,), (tokens,), us,
                (op, of))


SOURCES = {
    "gemm": ("github.com/ai-dynamo/aiconfigurator", "095f58a5", "Apache-2.0",
             "parquet to tables; some m left out, three digits kept"),
    "gradients": ("github.com/MooreThreads/SimuMax", "4dcaae51", "Apache-2.0",
                  "sizes named as of the forward product, three digits kept; "
                  "gradients times aiconfigurator's forward time over that of "
                  "the same machine"),
    "attention": ("github.com/ai-dynamo/aiconfigurator", "095f58a5",
                  "Apache-2.0", "parquet to tables; three digits kept"),
    "cudnn": ("github.com/NVIDIA/cudnn-frontend", "3929da2e and earlier", "MIT",
              "bf16, not deterministic; three digits kept"),
    "vidur": ("github.com/microsoft/vidur", "7d475133", "MIT",
              "medians of repeated rows, some tokens left out, three digits"),
}


def sources(device):
  def entry(section, key, more=""):
    repository, commit, licence, changes = SOURCES[key]
    return {"section": section, "repository": repository, "commit": commit,
            "licence": licence, "changes": changes + more}
  of = DERIVED.get(device, (device,))[0]
  note = ""
  if of != device:
    note = f"; derived: times of {of}, scaled by the data sheets' rates"
  result = [entry("gemm forward", "gemm", note),
            entry("attention forward", "attention", note)]
  if of in ("a100-sxm", "b200-sxm"):
    board = ("; attention of an A100 PCIe board, taken as the SXM one"
             if of == "a100-sxm" else "")
    result.append(entry("gemm gradients, grouped products, attention backward "
                        "at 4,096 tokens", "gradients", board + note))
  if of in ("h100-sxm", "h200-sxm", "b200-sxm"):
    more = {"h100-sxm": "; derived: measured on an H200",
            "b200-sxm": "; some derived: measured on a GB200, times 1.18"}
    result.append(entry("attention backward", "cudnn", more.get(of, "") + note))
  more = {"h200-sxm": "", "b200-sxm": "; derived: GB200, scaled by bandwidth"}
  result.append(entry("norms", "cudnn", more.get(
      of, "; derived: measured on an H200, scaled by bandwidth") + note))
  more = "" if of in ("a100-sxm", "h100-sxm") else (
      "; derived: measured on an H100, scaled by bandwidth")
  result.append(entry("activations, rope, add, embedding", "vidur",
                      more + note))
  return result


def text_of(device, tables, kept=""):
  of, processors = DERIVED.get(device, (device, RATES.get(device, [0] * 4)[3]))
  bf16, fp8, memory, own = RATES[of]
  head = {"version": 1, "device": device,
          "derived_from": of if of != device else ""}
  if processors != own:
    head["derived_multiprocessors"] = processors
  head["rates"] = {"bf16_flops_per_second": bf16, "fp8_flops_per_second": fp8,
                   "bytes_per_second": memory, "multiprocessors": own}
  head["launch_us"] = 4
  lines = [f'  "{k}": {json.dumps(v)}' for k, v in head.items()]
  lines.append('  "sources": [\n' + ",\n".join(
      "    " + json.dumps(s) for s in sources(device)) + "]")
  for name in ("gemm", "attention", "stream"):
    texts = tables.section(name)
    if texts:
      lines.append(f'  "{name}": [\n' + ",\n".join(texts) + "]")
  if kept:
    lines.append(f'  "collectives": {kept}')
  return "{\n" + ",\n".join(lines) + "\n}\n"


def derive(data, device, fold):
  split = Split(fold)
  for part in (gemm, gradients, attention, streams):
    part(data, device, split)
  return split


def collectives_of(path):
  if not os.path.exists(path):
    return ""
  with open(path, encoding="utf-8") as file:
    text = file.read()
  found = re.search(r'\n  "collectives": ', text)
  if not found:
    return ""
  decoder = json.JSONDecoder()
  _, end = decoder.raw_decode(text[found.end():])
  return text[found.end():found.end() + end]


def write(path, text):
  with open(path, "w", encoding="utf-8") as file:
    file.write(text)


def main():
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data", required=True, help="folder of the CSV files")
  parser.add_argument("--into", help="folder that the profiles go to")
  parser.add_argument("--tool", required=True, help="profile_accuracy, built")
  parser.add_argument("--check", action="store_true")
  parser.add_argument("--fold", type=int, default=0, help="0 to 4")
  parser.add_argument("--devices", nargs="*", default=list(RATES))
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    model = os.path.join(folder, "model.json")
    judge = os.path.join(folder, "judge.json")
    if args.check:
      for device in args.devices:
        split = derive(args.data, device, args.fold)
        write(model, text_of(device, split.model))
        write(judge, text_of(device, split.judge))
        print(f"{device}, unseen sites:", flush=True)
        subprocess.run([args.tool, model, judge], check=True)
      write(model, text_of("h100-sxm",
                           derive(args.data, "h100-sxm", None).model))
      unseen = Split(None)
      gemm(args.data, "h200-sxm", unseen)
      for kind in list(unseen.model.tables):
        if kind[2] == "fp8":
          del unseen.model.tables[kind]
      write(judge, text_of("h200-sxm", unseen.model))
      print("h200-sxm by the profile of h100-sxm:", flush=True)
      subprocess.run([args.tool, model, judge], check=True)
      return
    for device in args.devices + [
        d for d, (of, _) in DERIVED.items() if of in args.devices]:
      of = DERIVED.get(device, (device,))[0]
      path = os.path.join(args.into, device + ".json")
      kept = collectives_of(path)
      write(model, text_of(device, derive(args.data, of, None).model, kept))
      subprocess.run([args.tool, "--fit", model, path], check=True)
      print(f"{path}: {os.path.getsize(path) // 1000} kB")


if __name__ == "__main__":
  main()
