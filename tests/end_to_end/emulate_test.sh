#!/usr/bin/env bash
# Runs `pipeloom emulate` with cluster files and options for networks, devices,
# slow GPUs and jitter.
# usage: emulate_test.sh PIPELOOM_BINARY SOURCE_DIR
set -uo pipefail
pipeloom=$(realpath "$1")
source_dir=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
failures=0

fail() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }

# job NAME FIELDS: dip-vlm-s on its own cluster file with FIELDS (JSON, with a
# comma behind each) added. DEVICE stands for the cluster's device.
job() {
  local device
  device=$(sed -n '/"device": {/,/}/p' \
    "$source_dir/workloads/clusters/dip-h800-64.json" |
    sed '1s/.*"device": //; $s/,$//')
  awk -v fields="$2" -v device="$device" '
    NR == 1 { gsub(/DEVICE/, device, fields); print "{", fields; next }
    { print }' "$source_dir/workloads/clusters/dip-h800-64.json" >"$1-cluster.json"
  sed "s|\"cluster\": \"dip-h800-64\"|\"cluster\": \"./$1-cluster.json\"|" \
    "$source_dir/workloads/jobs/dip-vlm-s.json" >"$1.json"
}

plan="--batch image_text --strategy 1f1b --microbatches 4"
# step FIELD ARGS...: a number of the JSON of `emulate ARGS`.
step() {
  local field=$1
  shift
  timeout 120 "$pipeloom" emulate "$@" --format json >out 2>err ||
    fail "pipeloom emulate $*: $(cat err)"
  sed -n "s/^ *\"$field\": \([0-9.]*\).*/\1/p" out | head -n 1
}
less() { # less A B WHAT
  awk -v a="$1" -v b="$2" 'BEGIN { exit !(a + 0 < b + 0 && a > 0) }' ||
    fail "$3: $1 is not below $2"
}
same() { [ -n "$1" ] && [ "$1" = "$2" ] || fail "$3: $1 is not $2"; }

job plain ''
usual=$(step step_time_us dip-vlm-s $plan)
same "$(step step_time_us ./plain.json $plan)" "$usual" "the shipped cluster"
step step_time_us dip-vlm-s $plan >/dev/null
grep -q '"missing_lookups"' out || fail "emulate lists no missing look-ups"
grep -q 'note: not measured: ' err || fail "emulate notes no missing look-ups"

# --- devices by node: a GPU of rank 2 and 3, which are on node 1 ---
job mixed '"node_groups": [{"first_node": 1, "num_nodes": 1, "device": DEVICE}],'
same "$(step step_time_us ./mixed.json $plan)" "$usual" "the same device"
sed -i 's/"node_groups": .*"bf16_flops_per_second": 989/&/' mixed-cluster.json
awk '/node_groups/ { group = 1 }
  group && /bf16_flops_per_second/ { sub(/989/, "400"); group = 0 }
  { print }' mixed-cluster.json >m && mv m mixed-cluster.json
sed -i '0,/"name": "h800-sxm"/s//"name": "slower"/' mixed-cluster.json
mixed=$(step step_time_us ./mixed.json $plan)
less "$usual" "$mixed" "slower devices on a node"
"$pipeloom" plan ./mixed.json $plan --out mixed.pb >/dev/null 2>&1 ||
  fail "plan of mixed devices"
same "$(step step_time_us --plan mixed.pb)" "$mixed" "plan and emulate"
job fp8 '"node_groups": [{"num_nodes": 8, "precision": "PRECISION_FP8",
  "device": DEVICE}],'
less "$(step step_time_us ./fp8.json $plan --costs roofline)" \
  "$(step step_time_us dip-vlm-s $plan --costs roofline)" "fp8 on all nodes"

# --- slow GPUs and links, in the file and as options ---
job slow '"slow_gpus": [{"gpu": 5, "factor": 1.5}],'
slow=$(step step_time_us ./slow.json $plan)
less "$usual" "$slow" "a slow GPU"
less "$usual" "$(step step_time_us dip-vlm-s $plan --slow-rank 1=1.5)" \
  "--slow-rank"
job slowlink '"slow_links": [{"from_node": 0, "to_node": 1, "factor": 20}],'
less "$usual" "$(step step_time_us ./slowlink.json $plan)" "a slow link"
less "$usual" "$(step step_time_us dip-vlm-s $plan --slow-link 1-2=20)" \
  "--slow-link"

# --- cards and domains ---
job cards '"nics_per_node": 1, "nic_sharing": "NIC_SHARING_FAIR",'
less "$usual" "$(step step_time_us ./cards.json $plan)" "one card for 8 GPUs"
job switch '"domain": {"kind": "DOMAIN_KIND_SWITCH", "gpus": 32},'
less "$(step step_time_us ./switch.json $plan)" "$usual" "a domain of 4 nodes"
for mode in none per-pair per-rank per-nic fair-nic; do
  less 1 "$(step step_time_us dip-vlm-s $plan --sharing $mode \
    --ranks-per-nic 2)" "--sharing $mode"
done
less 1 "$(step step_time_us dip-vlm-s $plan --blocking-sends)" \
  "--blocking-sends"

# --- jitter, in the file and as options; the same draws ---
job jitter '"jitter": {"compute": 0.05, "links": 0.1},'
drawn=$(step p99_us ./jitter.json $plan --samples 50)
less "$usual" "$drawn" "jitter"
same "$(step p99_us dip-vlm-s $plan --samples 50 --jitter 0.05 \
  --link-jitter 0.1)" "$drawn" "--jitter"

# --- faults of the file name the field ---
refused() { # refused NAME TEXT
  "$pipeloom" emulate "./$1.json" $plan >out 2>err && fail "$1 was taken"
  grep -qF -- "$2" err || fail "\"$2\" is not in: $(cat err)"
}
job bad1 '"nics_per_node": 3,'
refused bad1 "nics_per_node is 3; it must be 0 or a divisor"
job bad2 '"slow_gpus": [{"gpu": 64, "factor": 2}],'
refused bad2 "slow_gpus[0].gpu is 64"
job bad3 '"domain": {"kind": "DOMAIN_KIND_TORUS"},'
refused bad3 "DOMAIN_KIND_HOP_RING"

[ $failures = 0 ] || exit 1
echo "emulate: OK"
