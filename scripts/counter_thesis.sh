#!/bin/sh
# Static schedules with well assigned samples against planning every step: the
# same steps of a batch, in order and balanced, one table each. Rows 1f1b,
# nnscaler and disttrain have a fixed rule; `static` replays the order that
# pipeloom found for the first step; pipeloom plans each step.
#
#   scripts/counter_thesis.sh BINARY [STEPS] [EVALUATIONS]
#
# 200 steps at 200 evaluations take some minutes a job.
set -e
if [ $# -lt 1 ]; then
  sed -n '2,9s/^# \{0,1\}//p' "$0"
  exit 2
fi
binary=$1
steps=${2:-200}
evaluations=${3:-200}
for pair in dip-vlm-s:image_text dip-vlm-m:image_text dip-t2v-s:video \
    qwen2.5-vl-7b:mixed; do
  job=${pair%%:*}
  batch=${pair##*:}
  partition=$(mktemp)
  "$binary" partition "$job" --batch "$batch" --out "$partition" > /dev/null
  for assignment in in-order balanced; do
    echo "## $job, $batch, $assignment"
    "$binary" compare "$job" --batch "$batch" --shuffle 1 --steps "$steps" \
      --replicas 1 --partition "$partition" --assignment "$assignment" \
      --schedules megatron,1f1b,nnscaler,disttrain,pipeloom --static \
      --evaluations "$evaluations"
    echo
  done
  rm -f "$partition"
done
