#!/usr/bin/env bash
# `pipeloom calibrate` and `pipeloom cost` as a user runs them, from files to a
# profile to prices. usage: calibrate_test.sh PIPELOOM_BINARY SOURCE_DIR
set -uo pipefail
pipeloom=$(realpath "$1")
source_dir=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
failures=0

fail() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }

# expect CODE TEXT ARGS...: the exit code, and TEXT in what is printed.
expect() {
  local code=$1 text=$2 got
  shift 2
  timeout 120 "$pipeloom" "$@" >out 2>err
  got=$?
  [ "$got" = "$code" ] || fail "exit $got, not $code: pipeloom $*: $(cat err)"
  grep -qF -- "$text" out err || {
    fail "\"$text\" is not in the output of: pipeloom $*"
    head -c 600 out err >&2
  }
}

# products FACTOR: of a device of 80 % of an H100's peak, slowed by FACTOR.
products() {
  awk -v factor="$1" 'BEGIN {
    print "m,n,k,us"
    for (n = 1024; n <= 8192; n *= 2)
      for (k = 1024; k <= 16384; k *= 4)
        for (m = 128; m <= 16384; m *= 2)
          printf "%d,%d,%d,%.3f\n", m, n, k,
                 3 + factor * 2 * m * n * k / (0.8 * 989e6)
  }'
}
nccl() {
  awk 'BEGIN {
    print "op,dtype,num_gpus,bytes,us"
    for (bytes = 1024; bytes <= 1e9; bytes *= 2)
      printf "all_gather,half,8,%d,%.2f\n", bytes, 10 + bytes / 380e3
  }'
}

expect 0 "usage: pipeloom cost" cost --help
expect 0 "usage: pipeloom calibrate" calibrate --help
expect 2 "--device NAME is missing" cost
expect 2 "--out FILE is missing" calibrate --device h20 --measurements a.csv

# --- from measurements to prices ---
products 1 >gemm_h100.csv
nccl >nccl_h100.csv
expect 0 "wrote p.json" calibrate --device h100-sxm --out p.json \
  --measurements gemm_h100.csv nccl_h100.csv
grep -q "gemm forward bf16" out || fail "no error of gemm"
grep -q "all_gather" out || fail "no error of all_gather"
cp p.json again.json
expect 0 "wrote p.json" calibrate --device h100-sxm --out p.json \
  --measurements gemm_h100.csv,nccl_h100.csv
cmp p.json again.json || fail "the same measurements give two profiles"
cat >q.jsonl <<'END'
{"op": "gemm", "m": 1024, "n": 4096, "k": 4096, "dtype": "bf16"}
{"op": "all_gather", "bytes": 4194304, "ranks": 8, "span": "node"}
{"op": "all_gather", "bytes": 5000000, "ranks": 8, "span": "node"}
END
expect 0 '"source": "measured"' cost --device h100-sxm --profile p.json \
  --queries q.jsonl
[ "$(grep -c '"time_us": 21.04' out)" = 1 ] || fail "all_gather: $(cat out)"
[ "$(grep -c '"source": "interpolated"' out)" = 1 ] || fail "sources: $(cat out)"
"$pipeloom" cost --device h100-sxm --queries - <q.jsonl >stdin.out ||
  fail "queries from stdin"
[ "$(wc -l <stdin.out)" = 3 ] || fail "stdin: $(cat stdin.out)"
# After an error, the reader has all answers given before it.
yes "$(head -n 1 q.jsonl)" | head -n 20000 >many.jsonl
echo '{"op": "gemm", "m": 0}' >>many.jsonl
expect 1 "many.jsonl:20001: field \"m\" is 0" cost --device h100-sxm \
  --profile p.json --queries many.jsonl
[ "$(wc -l <out)" = 20000 ] || fail "$(wc -l <out) of 20000 answers"

# --- each refusal, with its reason and without a profile ---
refuse() {
  local kind=$1
  shift
  rm -f r.json
  expect 1 "$kind" calibrate --device h100-sxm --out r.json --measurements "$@"
  [ ! -e r.json ] || fail "$kind: a profile was written"
}
products 0.5 >fast.csv
refuse "non-physical: fast.csv" fast.csv
products 3.2 >slow.csv
refuse "mislabelled: slow.csv" slow.csv
cp gemm_h100.csv gemm_a100.csv
refuse "mislabelled: gemm_a100.csv: its name says device a100" gemm_a100.csv
cp gemm_h100.csv copy.csv
refuse "duplicate-file: copy.csv" gemm_h100.csv copy.csv
(cat gemm_h100.csv; tail -n 1 gemm_h100.csv | awk -F, -v OFS=, '{$4 *= 3; print}') >twice.csv
refuse "disagreeing: twice.csv" twice.csv
head -n 5 gemm_h100.csv >few.csv
refuse "too-few" few.csv
(head -n 1 gemm_h100.csv; tail -n +2 gemm_h100.csv |
  awk '{print (NR * 7919) % 96, $0}' | sort -n | cut -d' ' -f2- |
  awk -F, -v OFS=, 'NR <= 6 {$4 *= 2} {print}') >cold.csv
refuse "cold-start: cold.csv" cold.csv
awk -F, -v OFS=, 'NR > 1 && NR % 8 == 3 {$4 *= 40} {print}' gemm_h100.csv \
  >wild.csv
refuse "non-monotone: wild.csv" wild.csv
printf 'm,n,k,us\n64,64,64,nan\n' >nan.csv
refuse "nan.csv:2: column \"us\" is \"nan\"" nan.csv
awk -F, -v OFS=, 'NR == 1 {print $0, "dtype"} NR > 1 {$4 *= 9; print $0, "fp32"}' \
  gemm_h100.csv >fp32.csv
refuse "96 rows of gemm fp32" fp32.csv --accept cold-start
expect 0 "left out 96 rows of gemm fp32" calibrate --device h100-sxm \
  --out r.json --measurements gemm_h100.csv,fp32.csv --accept cold-start
expect 0 "accepted, mislabelled" calibrate --device h100-sxm --out r.json \
  --measurements slow.csv --accept mislabelled

# --- the script that measures ---
if command -v python3 >/dev/null; then
  python3 -B "$source_dir/scripts/measure_gpu.py" --list --quick >list.txt ||
    fail "measure_gpu.py --list"
  grep -q "gemm: .* shapes" list.txt || fail "measure_gpu.py lists no shapes"
  if python3 -c 'import torch' 2>/dev/null; then
    python3 -B "$source_dir/scripts/measure_gpu.py" --device cpu --quick \
      --out measured || fail "measure_gpu.py --device cpu"
    head -n 1 measured/gemm.csv | grep -q "^op,device,dtype,pass,m,n,k" ||
      fail "measure_gpu.py: columns"
  fi
  steps=$source_dir/scripts/measure_steps.py
  python3 -B "$steps" --list --only qwen3-8b >list.txt &&
    [ "$(wc -l <list.txt)" = 2 ] || fail "measure_steps.py --list"
  python3 -B "$steps" --list --only nothing-like-it 2>list.txt
  [ $? = 2 ] && grep -q "nothing-like-it" list.txt ||
    fail "measure_steps.py --only without a run"
  python3 -B "$steps" --rows rows.csv --only llama3.2-1b ||
    fail "measure_steps.py --rows"
  expect 0 "llama3.2-1b 4x8192" backtest rows.csv
  # The tables that it measured say what it says of their runs now.
  python3 -B "$steps" --rows rows.csv || fail "measure_steps.py --rows of all"
  said() { grep -v "^#" "$1" | cut -d , -f 1,2,4-9,12 | sort; }
  said rows.csv >said.txt
  said "$source_dir/workloads/validation/pytorch_h200.csv" | cmp - said.txt ||
    fail "pytorch_h200.csv: other words"
fi

# --- the data that was measured with it ---
measured=$source_dir/workloads/measured/h200-sxm
expect 0 "grouped_gemm weight_grad" calibrate "$measured/grouped.csv" \
  "$measured/gemm.csv" "$measured/attention.csv" --device h200-sxm \
  --out h200.json --folds 5
expect 0 "left out 126 products of widths" calibrate "$measured/gemm.csv" \
  "$measured/unaligned.csv" --device h200-sxm --out h200.json

[ "$failures" = 0 ] && echo "calibrate_test: all passed"
[ "$failures" = 0 ]
