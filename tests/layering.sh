#!/usr/bin/env bash
# Who may include whom: fails on the first include that the table lacks.
# usage: layering.sh SOURCE_DIR
set -euo pipefail
cd "$1"

declare -A allowed=(
  [base]="base"
  [ir]="base ir"
  [emulator]="base ir emulator"
  [adapters]="base ir adapters"
  [runtime]="base ir runtime"
  [workloads]="base ir workloads"
  [proto]="base ir proto pipeloom"
  [partition]="base ir emulator partition"
  [planner]="base ir emulator partition planner"
  [service]="base ir emulator workloads proto pipeloom partition planner service"
)
folders="base ir adapters emulator runtime workloads proto partition planner service cli \
tests benchmarks"

status=0
for folder in "${!allowed[@]}"; do
  while IFS=: read -r file line text; do
    target=$(sed -E 's/.*"([a-z_]+)\/.*/\1/' <<<"$text")
    if ! grep -qw "$target" <<<"${allowed[$folder]}" &&
       { grep -qw "$target" <<<"$folders" || [ "$target" = pipeloom ]; }; then
      echo "$file:$line: $folder/ must not include $target/: $text"
      status=1
    fi
  done < <(grep -rnE --include='*.h' --include='*.cc' \
             '^#include "[a-z_]+/' "$folder" || true)
done
[ "$status" = 0 ] && echo "layering: every include is in the table"
exit "$status"
