#!/usr/bin/env python3
"""Runs the schedule-search benchmark and puts its tables into docs/results.md.

usage: scripts/make_results.py PIPELOOM [--out build/bench] [BENCH OPTION...]

Runs `PIPELOOM bench --out OUT` (about ten minutes; leave the machine alone)
with the options named, then replaces what stands between the two marks
"<!-- bench -->" and "<!-- /bench -->" of docs/results.md by OUT/results.md. The
page with the plots is OUT/index.html.
"""
import argparse
import os
import subprocess
import sys
import time

BEGIN, END = "<!-- bench -->\n", "<!-- /bench -->\n"
HEADING = "## The schedule-search benchmark\n\n"
BEFORE = "## Speed\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("pipeloom")
    parser.add_argument("--out", default="build/bench")
    args, options = parser.parse_known_args()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.path.join(root, "docs", "results.md")
    begin = time.monotonic()
    subprocess.run([args.pipeloom, "bench", "--out", args.out, *options],
                   check=True)
    minutes = (time.monotonic() - begin) / 60
    with open(os.path.join(args.out, "results.md"), encoding="utf-8") as file:
        tables = file.read().replace(f"--out {args.out}", "--out DIR")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    section = f"{BEGIN}{tables.rstrip()}\n\nThe run took {minutes:.1f} minutes.\n{END}"
    if BEGIN in text:
        head, rest = text.split(BEGIN, 1)
        text = head + section + rest.split(END, 1)[1]
    elif BEFORE in text:
        text = text.replace(BEFORE, f"{HEADING}{section}\n{BEFORE}", 1)
    else:
        sys.exit(f"{path} has neither {BEGIN.strip()} nor {BEFORE.strip()}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    print(f"wrote {path} in {minutes:.1f} minutes")


if __name__ == "__main__":
    main()
