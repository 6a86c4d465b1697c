#!/usr/bin/env python3
"""Derives the "collectives" sections of workloads/profiles/*.json.

    scripts/derive_collectives.py --data DIR --into workloads/profiles
    scripts/derive_collectives.py --data DIR --check      # errors; writes none

DIR holds the public measurements as CSV:
    collectives/nccl_{h100_sxm,h200_sxm,b200_sxm,gb200}_*.csv
        NVIDIA AIConfigurator @095f58a5, Apache-2.0: op, dtype, num_gpus,
        bytes (of the full buffer), us; one node, NCCL 2.29.2
    collectives/vtrain_allreduce_a100.csv   vTrain @f8dda847, MIT; only checked
    vidur/net_*_send_recv.csv, net_*_all_reduce.csv[.gz]
        microsoft/vidur @7d475133, MIT: size (bytes), median_ms

What is done to them: the faster of two element types at a size (both move the
same bytes; spikes are always slow), times made not to descend with size (pool
adjacent violators on logarithms), sizes that are missing between powers of two
filled in from the shape of related curves, and marked as estimates.
"""

import argparse
import bisect
import csv
import glob
import gzip
import json
import math
import os
import sys

OPS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
MIB = 1 << 20

# AIConfigurator @095f58a5, a100_sxm, NCCL 2.27.3, half, us at 16 KiB times
# powers of four.
A100_SIZES = [16384 << (2 * i) for i in range(8)]
A100 = {
    ("all_reduce", 2): [12.8, 13, 15.3, 40.8, 55.8, 128.2, 391.5, 1430.1],
    ("all_reduce", 4): [16.3, 17.8, 18.1, 29.8, 68.8, 183.5, 544.3, 1926.6],
    ("all_reduce", 8): [22.6, 28.1, 27.5, 38.9, 77.3, 216.5, 595.3, 2182.5],
    ("all_gather", 2): [11.4, 12.5, 13.6, 19.9, 43.3, 93.4, 266.3, 939],
    ("all_gather", 4): [13.9, 15.4, 15.9, 22.5, 60.7, 118.5, 325.4, 1106.4],
    ("all_gather", 8): [15.8, 21.1, 21, 26.8, 48, 135, 351.6, 1216.8],
    ("reduce_scatter", 2): [11.2, 11.8, 13, 19.4, 41.3, 82.3, 230.3, 826],
    ("reduce_scatter", 4): [12.6, 13.9, 14.3, 21.1, 56.7, 109.3, 303.3, 1034.8],
    ("reduce_scatter", 8): [15.1, 18, 18.2, 23.4, 52, 123.4, 327.2, 1149.5],
    ("all_to_all", 2): [12.5, 13.9, 14.7, 22.8, 38.2, 98.3, 243, 844.5],
    ("all_to_all", 4): [13.2, 14.5, 15.7, 25.2, 41.4, 104.4, 312, 1070.6],
    ("all_to_all", 8): [12.6, 14.2, 18.4, 25.8, 64.3, 114.3, 347.6, 1197.9],
}

# Bandwidth inside a node to which the curves refer, in GB/s, as in the device's
# cluster file. Times on another link are scaled from it.
LINKS = {
    "a100-sxm": 200, "a800-sxm": 133, "b200-sxm": 595, "h100-sxm": 325,
    "h200-sxm": 325,
    "h800-sxm": 160, "h20": 325,
}

# ---- curves: {bytes: us} ---------------------------------------------------


def slower(curves, ratio):
  """Returns curves with a slower link inside the node, and the estimated sizes
  of each."""
  slowed, marks = {}, {}
  for key, curve in curves.items():
    wire = 1 if key[2:] == ("inter_node",) else ratio
    last = curve[max(curve)] / max(curve)
    slowed[key] = {s: us + (wire - 1) * last * s for s, us in curve.items()}
    marks[key] = sorted(curve) if wire > 1 else []
  return slowed, marks


def not_descending(curve):
  """Returns the nearest curve (in logarithms) whose times do not descend."""
  blocks = []
  for size in sorted(curve):
    blocks.append([math.log(curve[size]), 1])
    while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
      value, count = blocks.pop()
      before, many = blocks.pop()
      blocks.append([(before * many + value * count) / (many + count),
                     many + count])
  values = [v for v, count in blocks for _ in range(count)]
  return {size: math.exp(v) for size, v in zip(sorted(curve), values)}


def between(curve, size, low, high):
  f = math.log(size / low) / math.log(high / low)
  return math.log(curve[low]) * (1 - f) + math.log(curve[high]) * f


def at(curve, size):
  """Interpolates a curve as emulator/cost/collective_profile.h does."""
  sizes = sorted(curve)
  if size in curve:
    return curve[size]
  if size <= sizes[0]:
    return curve[sizes[0]]
  last = sizes[-1]
  if size >= last:
    slope = curve[last] / last
    half = [s for s in sizes if 2 * s <= last]
    if half:
      part = (curve[last] - curve[half[-1]]) / (last - half[-1])
      slope = min(max(part, slope / 2), slope)
    return curve[last] + slope * (size - last)
  i = bisect.bisect(sizes, size)
  return math.exp(between(curve, size, sizes[i - 1], sizes[i]))


def deviation(curve, size, low, high):
  """Returns a curve's distance from its own chord, in logarithms; None if it
  lacks a point."""
  if size in curve and low in curve and high in curve:
    return math.log(curve[size]) - between(curve, size, low, high)
  return None


def estimate(curves, key, size):
  """Estimates a time between its neighbours, with the curvature that related
  curves have there: groups of other sizes at as many bytes and at as many
  bytes per GPU; all_gather and reduce_scatter for each other."""
  curve = curves[key]
  sizes = [s for s in sorted(curve) if s != size]
  i = bisect.bisect(sizes, size)
  low, high = sizes[i - 1], sizes[i]
  op, ranks = key
  bends = []
  for other, related in curves.items():
    if other == key:
      continue
    scales = []
    if other[0] == op:
      scales = [1, other[1] / ranks]
    elif other[1] == ranks and {op, other[0]} == {"all_gather",
                                                  "reduce_scatter"}:
      scales = [1]
    for scale in scales:
      bends.append(
          deviation(related, int(size * scale), int(low * scale),
                    int(high * scale)))
  bends = [b for b in bends if b is not None]
  bend = 0.75 * sum(bends) / len(bends) if bends else 0.0
  return math.exp(between(curve, size, low, high) + bend)


def filled(curves):
  """Returns the curves with missing powers of two filled in, and the sizes
  that were filled in."""
  result, estimated = {}, {}
  for key, curve in curves.items():
    size = min(curve)
    estimated[key] = []
    result[key] = dict(curve)
    while size < max(curve):
      if size not in curve:
        result[key][size] = estimate(curves, key, size)
        estimated[key].append(size)
      size *= 2
    result[key] = not_descending(result[key])
  return result, estimated


# ---- sources ---------------------------------------------------------------


def rows(path):
  opener = gzip.open if path.endswith(".gz") else open
  with opener(path, "rt", encoding="utf-8", newline="") as file:
    yield from csv.DictReader(file)


def nccl(data, name):
  """Returns {(op, ranks): {bytes: [us of each element type]}}."""
  paths = sorted(glob.glob(f"{data}/collectives/nccl_{name}_*.csv"))
  if not paths:
    sys.exit(f"derive_collectives.py: no nccl_{name}_*.csv in "
             f"{data}/collectives")
  found = {}
  for row in rows(paths[-1]):
    op = row["op"].replace("alltoall", "all_to_all")
    curve = found.setdefault((op, int(row["num_gpus"])), {})
    curve.setdefault(int(row["bytes"]), []).append(float(row["us"]))
  return found


def fastest(found):
  return {
      key: not_descending({size: min(us) for size, us in curve.items()})
      for key, curve in found.items()
  }


def vidur(data, name, workers, per_node):
  curve = {}
  for row in rows(f"{data}/vidur/{name}"):
    if (int(row["num_workers"]), int(row["devices_per_node"])) == (workers,
                                                                   per_node):
      curve[int(row["size"])] = float(row["median_ms"]) * 1e3
  return not_descending(curve)


def thinned(curve):
  """Returns the curve at the powers of two inside it."""
  sizes = [1 << i for i in range(11, 27) if min(curve) <= 1 << i <= max(curve)]
  return {s: at(curve, s) for s in sizes}


# ---- devices ---------------------------------------------------------------

PUBLIC = ("One node, full-buffer bytes: AIConfigurator @095f58a5 (Apache-2.0), "
          "NCCL {}; the faster of half and int8, made not to descend; missing "
          "powers of two estimated. ")
P2P = "send_recv: vidur @7d475133 (MIT), {}. "
NETWORK = ("Between nodes: model, {:g} of {:g} GB/s a GPU; not measured. "
           "Slowdown of compute during communication: 20 of 132 "
           "multiprocessors communicate (DeepSeek-V3 report).")


def section(curves, estimated, nic, nominal, node, text):
  return {
      "curves": curves, "estimated": estimated, "nic": nic, "node": node,
      "source": text + NETWORK.format(nic, nominal)
  }


def derive(data):
  """Returns {device: section}."""
  h100_near = thinned(vidur(data, "net_h100_dgx_send_recv.csv", 2, 2))
  h100_far = thinned(vidur(data, "net_h100_dgx_send_recv.csv", 2, 1))
  devices = {}

  def add_transfers(curves, estimated, near, far):
    curves[("send_recv", 2, "node")] = not_descending(near)
    curves[("send_recv", 2, "inter_node")] = not_descending(far)
    for key in list(curves):
      estimated.setdefault(key, [])

  base = fastest(nccl(data, "h100_sxm"))
  for device, name in (("h100-sxm", "h100_sxm"), ("h200-sxm", "h200_sxm"),
                       ("b200-sxm", "b200_sxm")):
    curves, estimated = filled(fastest(nccl(data, name)))
    near = h100_near
    if device != "h100-sxm":
      # A transfer of S takes half the time of an all_to_all of 2 S between two
      # ranks.
      near = {
          s: us * at(curves[("all_to_all", 2)], 2 * s) /
             at(base[("all_to_all", 2)], 2 * s) for s, us in near.items()
      }
    add_transfers(curves, estimated, near, h100_far)
    how = "H100, two of a node and one each of two nodes"
    if device != "h100-sxm":
      how = ("H100; inside a node times the ratio of all_to_all between two "
             "GPUs, between nodes as H100")
    devices[device] = section(curves, estimated, 45, 50, LINKS[device],
                              PUBLIC.format("2.29.2") + P2P.format(how))

  a100 = {
      key: not_descending(dict(zip(A100_SIZES, us)))
      for key, us in A100.items()
  }
  estimated = {}
  pair = vidur(data, "net_a100_pairwise_nvlink_send_recv.csv", 2, 2)
  near = {s: us + s / 228e3 - s / 285e3 for s, us in thinned(pair).items()}
  add_transfers(a100, estimated, near, h100_far)
  del a100[("send_recv", 2, "inter_node")]
  devices["a100-sxm"] = section(
      a100, estimated, 22.5, 25, LINKS["a100-sxm"],
      PUBLIC.format("2.27.3, half, eight sizes") +
      P2P.format("pair of A100 with a bridge, slowed from its 285 GB/s to the "
                 "228 of a DGX"))

  # Not measured: the times of the same chip, with the time on the wire
  # multiplied by the ratio of the links' bandwidths.
  slowed, marks = slower(devices["a100-sxm"]["curves"], 200 / 133)
  devices["a800-sxm"] = section(
      slowed, marks, 22.5, 25, LINKS["a800-sxm"],
      "Not measured: as A100, with NVLink at 400 of its 600 GB/s (data "
      "sheets). ")
  h100 = devices["h100-sxm"]
  slowed, marks = slower(h100["curves"], 335 / 160)
  devices["h800-sxm"] = section(
      slowed, marks, 45, 50, LINKS["h800-sxm"],
      "Not measured: as H100, with NVLink at 160 of its 335 GB/s usable "
      "(DeepEP notes: about 160 on H800). ")
  devices["h20"] = section(
      {k: dict(c) for k, c in h100["curves"].items()},
      {k: sorted(c) for k, c in h100["curves"].items()}, 45, 50, LINKS["h20"],
      "Not measured: as H100, which has the same links. ")
  devices["l40s"] = section(
      {}, {}, 22.5, 25, 20,
      "Inside a node: model of a ring over PCIe 4.0 at 20 of 32 GB/s; the "
      "public table for 4 and 8 GPUs shows 1 to 5 GB/s, a broken "
      "environment. ")
  return devices


# ---- out -------------------------------------------------------------------


def latencies(device):
  """Returns the latencies of the links of the device's cluster file, in us."""
  path = os.path.join(os.path.dirname(__file__), "..", "workloads", "clusters",
                      f"{device}.json")
  with open(path, encoding="utf-8") as file:
    cluster = json.load(file)
  return {
      "node_latency_us": cluster["intra_node"]["latency_us"],
      "nic_latency_us": cluster["inter_node"]["latency_us"]
  }


def text_of(part, device):
  """Returns JSON with one curve per line."""
  lines = []
  order = {op: i for i, op in enumerate(OPS + ["send_recv"])}
  keys = [key if len(key) == 3 else key + ("node",) for key in part["curves"]]
  spans = ["node", "inter_node"]
  for key in sorted(keys, key=lambda k: (order[k[0]], spans.index(k[2]), k[1])):
    inner = key if key in part["curves"] else key[:2]
    curve = part["curves"][inner]
    estimated = part["estimated"].get(inner, [])
    sizes = sorted(curve)
    fields = {
        "op": key[0], "span": key[2], "ranks": key[1], "bytes": sizes,
        "us": [float(f"{curve[s]:.4g}") for s in sizes]
    }
    if estimated:
      fields["estimated"] = sorted(estimated)
    lines.append("      " + json.dumps(fields))
  head = {
      "nic_bytes_per_second": int(part["nic"] * 1e9), "gpus_per_node": 8,
      "node_bytes_per_second": int(part["node"] * 1e9),
      **latencies(device),
      "compute_slowdown": round(132 / 112, 4), "communication_slowdown": 1
  }
  out = "{\n" + "".join(f"    {json.dumps(k)}: {json.dumps(v)},\n"
                        for k, v in head.items())
  out += f"    \"source\": {json.dumps(part['source'])},\n"
  out += "    \"curves\": ["
  out += ("\n" + ",\n".join(lines) + "\n    " if lines else "") + "]\n  }"
  return out


def start(path, device):
  """Makes a profile without tables; derive_profiles.py keeps the members that
  are put into it."""
  os.makedirs(os.path.dirname(path), exist_ok=True)
  clusters = os.path.join(os.path.dirname(path), "..", "clusters")
  with open(f"{clusters}/{device}.json", encoding="utf-8") as file:
    rates = json.load(file)["device"]
  with open(path, "w", encoding="utf-8") as file:
    json.dump({
        "version": 1, "device": device,
        "rates": {
            "bf16_flops_per_second": rates["bf16_flops_per_second"],
            "fp8_flops_per_second": rates.get("fp8_flops_per_second", 0),
            "bytes_per_second": rates["memory_bandwidth_bytes_per_second"]
        }
    }, file, indent=2)


def put(path, text):
  """Replaces the member "collectives" of the file's object, or adds it."""
  with open(path, encoding="utf-8") as file:
    old = file.read()
  start = old.find("\n  \"collectives\": ")
  if start >= 0:
    begin = old.index("{", start)
    _, length = json.JSONDecoder().raw_decode(old[begin:])
    new = old[:begin] + text + old[begin + length:]
  else:
    end = old.rstrip().rindex("}")
    body = old[:end].rstrip()
    comma = "" if body.endswith("{") else ","
    new = body + comma + "\n  \"collectives\": " + text + "\n}\n"
  json.loads(new)
  with open(path + ".part", "w", encoding="utf-8") as file:
    file.write(new)
  os.replace(path + ".part", path)


# ---- errors ----------------------------------------------------------------


def report(what, errors):
  for name, group in (("1 MiB and more", [e for s, e in errors if s >= MIB]),
                      ("below", [e for s, e in errors if s < MIB])):
    if group:
      group.sort()
      print(f"{what:44s} {name:15s} n {len(group):4d}  mean "
            f"{100 * sum(group) / len(group):5.1f} %  median "
            f"{100 * group[len(group) // 2]:5.1f} %  worst "
            f"{100 * group[-1]:5.1f} %")


def log_between(curves, op, ranks, size):
  known = sorted(n for o, n in curves if o == op)
  if ranks in known:
    return at(curves[(op, ranks)], size)
  i = bisect.bisect(known, ranks)
  low, high = known[i - 1], known[i]
  f = math.log(ranks / low) / math.log(high / low)
  return math.exp((1 - f) * math.log(at(curves[(op, low)], size)) +
                  f * math.log(at(curves[(op, high)], size)))


def check(data):
  for name in ("h100_sxm", "h200_sxm", "b200_sxm", "gb200"):
    found = nccl(data, name)
    errors = []
    for key, curve in found.items():
      for size in sorted(curve)[1:-1]:
        rest = {k: dict(c) for k, c in found.items()}
        del rest[key][size]
        guess = estimate(fastest(rest), key, size)
        errors += [(size, abs(guess / us - 1)) for us in curve[size]]
    report(f"{name}: each size left out in turn", errors)
  b200 = filled(fastest(nccl(data, "b200_sxm")))[0]
  errors = [(size, abs(at(b200[key], size) / us - 1))
            for key, curve in nccl(data, "gb200").items()
            for size, both in curve.items() for us in both]
  report("gb200 by the profile of b200", errors)
  h100 = filled(fastest(nccl(data, "h100_sxm")))[0]
  errors = [(size, abs(at(h100[key], size) / us - 1))
            for key, curve in nccl(data, "h200_sxm").items()
            for size, both in curve.items() for us in both]
  report("h200 by the profile of h100", errors)
  pair = vidur(data, "net_h100_pairwise_nvlink_all_reduce.csv", 2, 2)
  report("h100 all_reduce of 2, vidur",
         [(s, abs(at(h100[("all_reduce", 2)], s) / us - 1))
          for s, us in pair.items()])
  a100 = {
      key: not_descending(dict(zip(A100_SIZES, us)))
      for key, us in A100.items()
  }
  groups = {}
  for row in rows(f"{data}/collectives/vtrain_allreduce_a100.csv"):
    ranks, size = int(row["num_gpus"]), int(row["bytes"])
    guess = log_between(a100, "all_reduce", ranks, size)
    groups.setdefault(ranks, []).append(
        (size, abs(guess / (float(row["oop_ns"]) * 1e-3) - 1)))
  for ranks, errors in sorted(groups.items()):
    report(f"a100 all_reduce of {ranks}, vTrain", errors)


def main():
  parser = argparse.ArgumentParser(
      description="Derives the collectives of device profiles.")
  parser.add_argument("--data", required=True, help="folder of measurements")
  parser.add_argument("--into", help="folder of NAME.json to put them into")
  parser.add_argument("--check", action="store_true",
                      help="print errors on data left out")
  args = parser.parse_args()
  if args.check:
    check(args.data)
    return
  for device, part in derive(args.data).items():
    text = text_of(part, device)
    if not args.into:
      print(f"{device}: {text}")
      continue
    path = os.path.join(args.into, device + ".json")
    if not os.path.exists(path):
      start(path, device)
    put(path, text)
    print(f"{path}: {len(part['curves'])} curves")


if __name__ == "__main__":
  main()
