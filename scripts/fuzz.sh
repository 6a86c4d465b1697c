#!/usr/bin/env bash
# Builds fuzz targets with the address and undefined-behaviour sanitizers and
# runs each for SECONDS; fails on the first finding.
# usage: scripts/fuzz.sh [SECONDS [TARGET ...]]     (default: 60, all targets)
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
mkdir -p build/fuzz/corpus
cmake --preset fuzz >build/fuzz/configure.log 2>&1 ||
  { cat build/fuzz/configure.log; exit 1; }
targets=${*:2}
[ -n "$targets" ] || targets=$(sed -nE 's/^ *pipeloom_fuzzer\((fuzz_[a-z_]+).*/\1/p' \
  tests/fuzz/CMakeLists.txt)
# shellcheck disable=SC2086
cmake --build --preset fuzz --target $targets fuzz_seeds -- --quiet
build/fuzz/tests/fuzz/fuzz_seeds build/fuzz/corpus
for target in $targets; do
  log=build/fuzz/$target.log
  mkdir -p "build/fuzz/corpus/$target" # Not every target has seeds.
  if "build/fuzz/tests/fuzz/$target" -max_total_time="$seconds" -seed=1 \
    -max_len=65536 -rss_limit_mb=4096 -artifact_prefix=build/fuzz/ \
    "build/fuzz/corpus/$target" >"$log" 2>&1; then
    echo "$target: clean, $(grep -oE 'Done [0-9]+ runs in [0-9]+ second' "$log")s"
  else
    tail -40 "$log"
    echo "$target: FOUND SOMETHING; the input is in build/fuzz/" >&2
    exit 1
  fi
done
