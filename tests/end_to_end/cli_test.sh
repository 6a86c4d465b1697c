#!/usr/bin/env bash
# Runs the `pipeloom` binary as a user would and checks exit codes, messages
# and files. usage: cli_test.sh PIPELOOM_BINARY
set -uo pipefail
pipeloom=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
failures=0
job=dip-vlm-s

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

# --- help and misuse ---
expect 0 "usage: pipeloom COMMAND" --help
expect 0 "pipeloom 0." --version
expect 2 "usage: pipeloom COMMAND"
for command in plan compare emulate search run validate explain export cost \
    calibrate; do
  expect 0 "usage: pipeloom $command" "$command" --help
  expect 2 "unknown option" "$command" --no-such-option
done
expect 2 "did you mean \"compare\"" compaer
expect 2 "did you mean \"--batch\"" plan $job --bach=x

# --- files that are not there or not right ---
expect 1 "No such file" validate ./none.json
expect 1 "no file and no shipped batch" plan $job --batch none
expect 1 "none.jsonl" plan $job --batch none.jsonl
expect 1 "none.pb" explain none.pb
expect 1 "nothere" plan nothere --batch text
: >empty.jsonl
expect 1 "empty.jsonl" plan $job --batch empty.jsonl
echo '{"audio_seconds": [2]}' >audio.jsonl
expect 1 "has no work for job" plan $job --batch audio.jsonl
printf '{"model": "dip-vlm-s",\n "cluster": "dip-h800-64",\n "colour": 3}\n' \
  >unknown.json
expect 1 "unknown.json:3" plan ./unknown.json --batch text
expect 1 "colour" validate unknown.json

# --- search ---
cat >graph.json <<'GRAPH'
{"ranks": [{"memory_limit_bytes": 20}, {}],
 "tasks": [
  {"id": 1, "rank": 0, "kind": "FORWARD", "duration_us": 1, "alloc_bytes": 20},
  {"id": 2, "rank": 0, "kind": "FORWARD", "duration_us": 1, "alloc_bytes": 20},
  {"id": 3, "rank": 1, "kind": "FORWARD", "duration_us": 2},
  {"id": 4, "rank": 1, "kind": "FORWARD", "duration_us": 2},
  {"id": 5, "rank": 0, "kind": "BACKWARD", "duration_us": 1, "free_bytes": 20},
  {"id": 6, "rank": 0, "kind": "BACKWARD", "duration_us": 1, "free_bytes": 20}],
 "edges": [{"from": 1, "to": 3}, {"from": 3, "to": 5},
           {"from": 2, "to": 4}, {"from": 4, "to": 6}]}
GRAPH
expect 0 '"makespan_us": 8.000' search graph.json --evaluations 100 \
  --format json --out answer.json
cmp -s out answer.json || fail "search: --out differs from what it printed"
case $(tr -d ' \n' <answer.json) in
*'"order":[[1,5,2,6],[3,4]]'* | *'"order":[[2,6,1,5],[4,3]]'*) ;;
*) fail "search: the order is not legal: $(cat answer.json)" ;;
esac
sed 's/"memory_limit_bytes": 20/"memory_limit_bytes": 19/' graph.json \
  >tight.json
expect 1 "rank 0" search --graph tight.json --evaluations 10

# --- plan, and every command that takes its plan ---
expect 0 "mean step time" plan $job --batch image_text --strategy 1f1b \
  --out plan.pb --trace trace.json --report report.html
for file in plan.pb trace.json report.html; do
  [ -s $file ] || fail "plan wrote no $file"
done
head -c 200 trace.json | grep -q traceEvents || fail "trace.json is no trace"
head -c 100 report.html | grep -q '<!DOCTYPE html>' || fail "report is no HTML"
expect 0 "plan.pb: OK, plan of $job" validate plan.pb
expect 0 "critical path" explain plan.pb
expect 0 "Instructions of rank 2" explain plan.pb --rank 2
expect 2 "the plan has 4 ranks" explain plan.pb --rank 4
expect 0 '"step_time_us"' emulate plan.pb --format json
expect 0 '"step_time_us"' emulate --plan plan.pb --format json
expect 0 "every rank in the planned order: yes" \
  run plan.pb --time-scale 0.002 --repeat 2
expect 0 "wrote plan.txt" export plan.pb --to text --out plan.txt
expect 0 "plan.txt: OK, plan of $job" validate plan.txt
expect 0 "plan.txt: OK" validate plan.txt --job $job --batch image_text
expect 1 "plan.txt: plan, by its job and batch: task 0" \
  validate plan.txt --job $job --batch video
expect 2 "--job is given and --batch is missing" validate plan.txt --job $job
expect 2 "--job is missing" validate plan.txt --batch image_text
sed 's/^predicted_step_time_ns [0-9]*/predicted_step_time_ns 1/' plan.txt \
  >fast.txt
for command in validate run; do
  expect 1 "lower_bound_ns is" $command fast.txt
done
sed '0,/^task 1 F rank 1/s//task 1 B rank 1/' plan.txt >backward.txt
for command in validate run; do
  expect 1 "has no forward on stage 1" $command backward.txt
done
expect 0 "wrote tasks.json" export plan.pb --to graph-json --out tasks.json
expect 0 "task graph" validate tasks.json
expect 0 "gap" search --graph tasks.json --evaluations 2
expect 0 "traceEvents" export plan.pb --to chrome
expect 0 "wrote steps-0001.pb" plan $job --batch text --steps 2 \
  --strategy gpipe --out steps.pb
head -c 1000 plan.pb >cut.pb
expect 1 "cut.pb" validate cut.pb
expect 1 "cut.pb" run --plan cut.pb
head -c 2000 plan.txt >cut.txt
expect 1 "cut.txt" explain cut.txt
: >zero.pb
expect 1 "zero.pb is empty" emulate --plan zero.pb
expect 1 "it looks like a task graph" run --plan graph.json

# --- the same bytes for any number of threads ---
for threads in 1 2 4; do
  expect 0 "mean step time" plan $job --batch image_text --evaluations 20 \
    --seed 7 --microbatches 4 --threads $threads --out threads-$threads.pb
done
cmp threads-1.pb threads-2.pb || fail "1 and 2 threads give different plans"
cmp threads-1.pb threads-4.pb || fail "1 and 4 threads give different plans"

# --- a batch of 100,000 samples ---
line='{"text_tokens": 40, "images": [[640, 480]]}'
yes "$line" | head -n 100000 >large.jsonl
expect 0 "mean step time" plan $job --batch large.jsonl --strategy gpipe \
  --steps 2

# --- outputs that cannot be written are found before the work ---
for option in out trace report; do
  expect 2 "--$option none/x: the folder none cannot be used" plan no-job \
    --batch text --$option none/x
done

# --- a full disk, and an interrupt: nothing half-written ---
echo old >kept.pb
(
  ulimit -f 1 # 1024 or 512 bytes: too little for a plan.
  "$pipeloom" plan $job --batch image_text --strategy 1f1b --out kept.pb \
    >/dev/null 2>full.err
)
[ $? = 1 ] || fail "a full disk is no error"
grep -q "kept.pb" full.err || fail "a full disk: the error names no file"
[ "$(cat kept.pb)" = old ] || fail "a full disk harmed the old file"
PIPELOOM_CACHE_DIR=empty timeout --preserve-status -s INT 0.5 "$pipeloom" plan $job \
  --batch image_text --deadline 60s --out stopped.pb >/dev/null 2>&1
[ $? = 130 ] || fail "SIGINT does not give exit code 130"
[ ! -e stopped.pb ] || fail "an interrupted plan wrote a file"
[ -z "$(find . -name '.pipeloom-*')" ] || fail "temporary files are left"
"$pipeloom" --help >/dev/full 2>/dev/null && fail "a full stdout is no error"

[ "$failures" = 0 ] && echo "cli_test: all passed"
[ "$failures" = 0 ]
