#!/usr/bin/env bash
# From a bare machine to the main job: installs what is missing, builds, and
# plans, compares and runs dip-vlm-s on real image-text batches, and asks the
# planner as a service from Python.
# usage: scripts/demo.sh [OUTPUT_DIR]     (default: build/demo)
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mkdir -p "${1:-build/demo}" && cd "${1:-build/demo}" && pwd)

say() { printf '\n== %s\n' "$*"; }
run() { printf '$ %s\n' "$*"; "$@"; }

say "packages"
scripts/install_packages.sh --service
say "build (release)"
cmake --preset release >"$out/configure.log" 2>&1 ||
  { cat "$out/configure.log"; exit 1; }
grep '^-- pipeloom:' "$out/configure.log" || true
cmake --build --preset release --target pipeloom pipeloom-service

pipeloom=build/release/cli/pipeloom
job=dip-vlm-s
say "every strategy on the same 3 steps of real image-text batches"
run "$pipeloom" compare "$job" --batch image_text --steps 3 \
  --strategies gpipe,1f1b,interleaved,megatron,megatron-tuned,pipeloom

say "one step planned, checked and written"
run "$pipeloom" plan "$job" --batch image_text --out "$out/plan.pb" \
  --trace "$out/trace.json" --report "$out/report.html"
run "$pipeloom" validate "$out/plan.pb"

say "the plan executed by 4 rank threads, 10 times faster than real time"
run "$pipeloom" run --plan "$out/plan.pb" --time-scale 0.1 --repeat 5

say "the planner as a service: started, asked from Python, stopped"
run scripts/demo_service.sh "$pipeloom" "$out"

say "done"
echo "report: $out/report.html (open in a browser)"
echo "trace:  $out/trace.json (open at ui.perfetto.dev)"
