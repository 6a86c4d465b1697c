#!/usr/bin/env python3
"""Draws docs/images/timeline.png: one step of dip-vlm-s by three strategies.

usage: draw_timeline.py PIPELOOM [OUT.png]

Plans the step with each strategy, opens the reports in a headless Chromium and
puts their timelines, on one scale, into one picture.
"""
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "end_to_end"))
import browser  # noqa: E402

STRATEGIES = ("megatron", "megatron-tuned", "pipeloom")
WIDTH = 1200

DRAW = """(end => {
  const view = pipeloomReport.timelines[0];
  view.show.transfers = false;
  view.t0 = 0;
  view.t1 = end;
  view.draw();
  return view.canvas.toDataURL();
})"""

PAGE = """<!doctype html><meta charset="utf-8"><style>
body{margin:0;padding:12px;background:#fff;color:#1c1e21;width:%dpx;
     font:15px system-ui,"DejaVu Sans",sans-serif}
img{display:block;width:100%%;margin:4px 0 14px}
p{margin:0}small{color:#555}
</style>%s<small>One row a pipeline rank. Blue: vision encoder, orange: language
model. Light: forward, dark: backward, between: weight gradient; a dark edge:
forward recomputed. Grey: idle. The number is the microbatch.</small>"""


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    pipeloom = os.path.abspath(sys.argv[1])
    out = sys.argv[2] if len(sys.argv) > 2 else os.path.join(
        ROOT, "docs", "images", "timeline.png")
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, browser.Browser() as chromium:
        pages = []
        for name in STRATEGIES:
            path = os.path.join(folder, name + ".html")
            subprocess.run(
                [pipeloom, "plan", "dip-vlm-s", "--batch", "image_text",
                 "--microbatches", "8", "--strategy", name, "--evaluations",
                 "2000", "--report", path],
                check=True, stdout=subprocess.DEVNULL)
            page = chromium.open(path, width=WIDTH, hash_text="#theme=light")
            page.call("Emulation.setDeviceMetricsOverride", width=WIDTH,
                      height=900, deviceScaleFactor=2, mobile=False)
            page.evaluate("pipeloomReport.timelines[0].layout()")
            pages.append(page)
        ends = [page.evaluate("pipeloomReport.timelines[0].step.end") for page in pages]
        parts = [
            f"<p><b>{name}</b>: step time {end / 1e9:.2f} s</p><img src="
            f"'{page.evaluate(f'{DRAW}({max(ends)})')}'>"
            for name, end, page in zip(STRATEGIES, ends, pages)]
        path = os.path.join(folder, "picture.html")
        with open(path, "w", encoding="utf-8") as file:
            file.write(PAGE % (WIDTH - 24, "".join(parts)))
        chromium.open(path, width=WIDTH, height=100).screenshot(out)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
