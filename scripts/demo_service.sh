#!/usr/bin/env bash
# The planner as a service: starts it, plans two steps of dip-vlm-s from Python,
# reads one rank's tasks, and stops it.
# usage: scripts/demo_service.sh PIPELOOM OUTPUT_DIR
# PIPELOOM is the program, with pipeloom-service next to it. Needs grpcio and
# protobuf for the system's Python.
set -euo pipefail
pipeloom=$1
out=$2
socket=unix:$out/planner.sock

printf '$ %s\n' "$pipeloom serve --listen $socket &"
"$pipeloom" serve --listen "$socket" --log-level warning >"$out/service.log" 2>&1 &
service=$!
trap 'kill "$service" 2>/dev/null || true' EXIT
for _ in $(seq 300); do
  grep -q '^listening on ' "$out/service.log" && break
  kill -0 "$service" 2>/dev/null || break
  sleep 0.1
done
if ! grep '^listening on ' "$out/service.log"; then
  cat "$out/service.log" >&2
  exit 1
fi

cat >"$out/plan_step.py" <<'PYTHON'
import sys

import pipeloom

samples = [pipeloom.Sample(300 + 40 * (i % 25), images=((640, 480),))
           for i in range(600)]
client = pipeloom.Client(sys.argv[1])
job = client.open_job("dip-vlm-s", samples[:300], partition_time=5)
for step in range(2):
    client.submit_batch(job.job_id, step, samples[300 * step:300 * step + 300])
for step in range(2):
    plan = client.plan(job.job_id, step)
    mine = client.rank_plan(job.job_id, step, replica=0, rank=0)
    print(f"step {step}: schedule {plan.schedule}, {len(mine.tasks)} tasks of "
          "rank 0 and its peers")
client.close()
PYTHON
printf '$ %s\n' "/usr/bin/python3 $out/plan_step.py $socket"
PYTHONPATH=$(dirname "$0")/../python /usr/bin/python3 "$out/plan_step.py" "$socket"

printf '$ %s\n' "kill $service"
kill "$service"
wait "$service"
trap - EXIT
echo "the service has stopped"
