#!/usr/bin/env bash
# Installs a build to a scratch prefix, builds the consumer project against it
# and runs both. usage: run.sh BUILD_DIR
set -euo pipefail
source_dir=$(cd "$(dirname "$0")" && pwd)
build_dir=$(cd "$1" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cmake --install "$build_dir" --prefix "$scratch/prefix" >"$scratch/log"
cmake -S "$source_dir" -B "$scratch/build" -G Ninja \
  -DCMAKE_PREFIX_PATH="$scratch/prefix" >>"$scratch/log"
cmake --build "$scratch/build" >>"$scratch/log"
"$scratch/build/consumer" "$scratch/prefix/share/pipeloom"
# The installed binary finds its data from where it lies.
cd "$scratch"
"$scratch/prefix/bin/pipeloom" validate dip-vlm-s
"$scratch/prefix/bin/pipeloom" backtest primus >>"$scratch/log"
"$scratch/prefix/bin/pipeloom" bench --problems minmem --strategies v-min \
  --budgets 10ms >>"$scratch/log"
echo "install: the consumer project and the installed binary work"
