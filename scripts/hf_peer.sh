#!/usr/bin/env bash
# A Python with transformers and diffusers, for the tests that split their
# models into pipelines.
# usage: hf_peer.sh make [TORCH [TRANSFORMERS [DIFFUSERS]]]  makes it: several
#                                                            GB, minutes
#        hf_peer.sh run FILE [ARG ...]   runs a test with it, or says
#                                        "skipped: ...", status 0
# PIPELOOM_HF_PYTHON names another interpreter; PIPELOOM_HF_PEER the folder
# (default: pipeloom/hf-peer in the user's cache).
set -euo pipefail
peer=${PIPELOOM_HF_PEER:-${XDG_CACHE_HOME:-$HOME/.cache}/pipeloom/hf-peer}

make_peer() {
  mkdir -p "$peer"
  /usr/bin/python3 -m venv "$peer"
  "$peer/bin/python" -m pip install --quiet "torch==${1:-2.9.1}" torchvision \
    "transformers==${2:-5.24.0}" "diffusers==${3:-0.42.1}" grpcio protobuf
  "$peer/bin/python" -c '
import diffusers, torch, transformers
print("torch", torch.__version__, "transformers", transformers.__version__,
      "diffusers", diffusers.__version__)'
}

case ${1:-} in
make) make_peer "${@:2}" ;;
run)
  python=${PIPELOOM_HF_PYTHON:-}
  [ -n "$python" ] || [ ! -x "$peer/bin/python" ] || python=$peer/bin/python
  if [ -z "$python" ]; then
    echo "skipped: no Python with transformers; scripts/hf_peer.sh make, or" \
      "PIPELOOM_HF_PYTHON"
    exit 0
  fi
  exec "$python" "${@:2}"
  ;;
*) sed -nE '2,/^set/s/^# ?//p' "$0" >&2; exit 2 ;;
esac
