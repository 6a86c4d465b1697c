#!/bin/sh
# Static schedules with well assigned samples against planning every step: the
# same steps of a batch, in order and balanced, one table each. Rows 1f1b,
# nnscaler and disttrain have a fixed rule; `static` replays the order that
# pipeloom found for the first step; pipeloom plans each step.
#
#   scripts/counter_thesis.sh BINARY [STEPS] [BUDGET]
#
# BUDGET of each search: a time such as 100ms (the default), or evaluations. 200
# steps at 100ms take about a minute a job.
set -e
if [ $# -lt 1 ]; then
  sed -n '2,10s/^# \{0,1\}//p' "$0"
  exit 2
fi
binary=$1
steps=${2:-200}
budget=${3:-100ms}
case $budget in
  *s) option=--deadline ;;
  *) option=--evaluations ;;
esac
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
      --strategies megatron,1f1b,nnscaler,disttrain,pipeloom --static \
      "$option" "$budget"
    echo
  done
  rm -f "$partition"
done
