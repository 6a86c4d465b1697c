#!/usr/bin/env python3
"""Measures how fast bf16 products stay while a GPU runs them for seconds, by the
share of its time that they take.

    scripts/measure_power.py                 # one minute, a Markdown table

A training step draws more power than the single products of a calibration: the
board's limit lowers the clock. This loops over a product and a copy, in shares
from products alone to mostly copies, 4 s each, and prints the rate of the
products (timed by events inside the loop), the clock and the power of the last
seconds. `sustained_bf16` of a cluster file is the rate of a share relative to
the rate of a short run on a cool GPU. Needs torch and one GPU."""

import argparse
import statistics
import subprocess
import sys
import threading
import time


def sample(samples, stop):
  while not stop.is_set():
    text = subprocess.run(
        ["nvidia-smi", "--query-gpu=clocks.sm,power.draw,temperature.gpu",
         "--format=csv,noheader,nounits", "-i", "0"], capture_output=True,
        text=True, timeout=20).stdout
    samples.append([float(x) for x in text.splitlines()[0].split(",")])
    stop.wait(0.3)


def loop(torch, seconds, product, copy, copies):
  """Returns (TFLOP/s of the products, their share of the time, clock, W)."""
  samples, stop = [], threading.Event()
  thread = threading.Thread(target=sample, args=(samples, stop))
  thread.start()
  begin = time.monotonic()
  times, shares = [], []
  while time.monotonic() - begin < seconds:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(61)]
    events[0].record()
    for i in range(20):
      for _ in range(10):
        product()
      events[3 * i + 1].record()
      for _ in range(copies):
        copy()
      events[3 * i + 2].record()
      events[3 * i + 3].record()
    torch.cuda.synchronize()
    if time.monotonic() - begin < seconds / 2:
      continue  # Warms up.
    ours = sum(events[3 * i].elapsed_time(events[3 * i + 1])
               for i in range(20))
    times.append(ours / 200)
    shares.append(ours / events[0].elapsed_time(events[60]))
  stop.set()
  thread.join()
  half = samples[len(samples) // 2:]
  return (statistics.median(times), statistics.median(shares),
          statistics.median(s[0] for s in half),
          statistics.median(s[1] for s in half))


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
  parser.add_argument("--seconds", type=float, default=4,
                      help="of each loop (default 4)")
  args = parser.parse_args()
  try:
    import torch
  except ImportError:
    print("measure_power.py: torch is not installed; `pip install torch`",
          file=sys.stderr)
    return 1
  if not torch.cuda.is_available():
    print("measure_power.py: torch sees no CUDA device", file=sys.stderr)
    return 1
  print("| product (m, n, k) | copies | share of products | TFLOP/s | SM MHz | W |")
  print("| --- | --- | --- | --- | --- | --- |")
  for m, n, k in ((8192, 8192, 8192), (8192, 4096, 4096), (2048, 8192, 2048)):
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(1 << 27, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    product = lambda: torch.mm(a, w.t(), out=c)  # pylint: disable=W0640
    ms, _, _, _ = loop(torch, 1, product, lambda: None, 0)
    for share in (1.0, 0.85, 0.7, 0.5, 0.3):
      time.sleep(2)
      copy_ms = 2 * 2 * x.numel() / 4e12 * 1e3
      copies = round(10 * ms * (1 - share) / share / copy_ms)
      if share < 1 and copies == 0:
        # Short products: copy a part.
        part = max(1 << 16, int(x.numel() * 10 * ms * (1 - share) / share /
                                copy_ms))
        copies, copy = 1, (lambda: y[:part].copy_(x[:part]))
      else:
        copy = lambda: y.copy_(x)  # pylint: disable=W0640
      took, real, clock, watts = loop(torch, args.seconds, product, copy,
                                      copies)
      print(f"| {m}, {n}, {k} | {copies} | {real:.0%} | "
            f"{2 * m * n * k / took / 1e9:.0f} | {clock:.0f} | {watts:.0f} |",
            flush=True)
  return 0


if __name__ == "__main__":
  sys.exit(main())
