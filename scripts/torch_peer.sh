#!/usr/bin/env bash
# A Python with a newer torch than the system's (torch.distributed.pipelining),
# Megatron-Core, DeepSpeed and torchtitan, for the tests that run their code next
# to ours.
# usage: torch_peer.sh make [TORCH [MEGATRON [DEEPSPEED [TORCHTITAN]]]]
#                                           makes it: 2.5 GB, 6 minutes
#        torch_peer.sh run FILE [ARG ...]   runs a test with it, or says
#                                           "skipped: ...", status 0
# PIPELOOM_TORCH_PYTHON names another interpreter; PIPELOOM_TORCH_PEER the
# folder (default: pipeloom/torch-peer in the user's cache).
set -euo pipefail
peer=${PIPELOOM_TORCH_PEER:-${XDG_CACHE_HOME:-$HOME/.cache}/pipeloom/torch-peer}

# torch's wheels for Linux are linked with CUDA. Where CUDA is installed, only
# the libraries it lacks are fetched; else everything torch asks for.
make_peer() {
  local torch=${1:-2.15.0} megatron=${2:-0.16.1} deepspeed=${3:-0.19.8}
  local torchtitan=${4:-0.3.0}
  local cuda=/usr/local/cuda/lib64:/usr/local/cuda/extras/CUPTI/lib64
  mkdir -p "$peer"
  /usr/bin/python3 -m venv "$peer"
  local pip=("$peer/bin/python" -m pip install --quiet)
  "${pip[@]}" filelock "typing-extensions>=4.13" sympy networkx jinja2 fsspec \
    numpy "setuptools>=77.0.3" packaging grpcio protobuf
  "${pip[@]}" --no-deps "torch==$torch" "megatron-core==$megatron"
  local site
  site=$("$peer/bin/python" -c 'import sysconfig; print(
      sysconfig.get_paths()["purelib"])')
  # Packages installed by the names that torch pins: those that are never part
  # of a CUDA installation, and nccl, whose symbols depend on torch's version.
  local few
  few=$("$peer/bin/python" -c '
import importlib.metadata, re
for line in importlib.metadata.requires("torch"):
    name = line.split(";")[0].strip().replace(" ", "")
    if "extra ==" not in line and re.match("nvidia-(cusparselt|nccl|nvshmem)",
                                           name):
        print(name)')
  # shellcheck disable=SC2086
  "${pip[@]}" --no-deps $few nvidia-cufile
  local libraries
  libraries=$(printf '%s:' "$site"/nvidia/*/lib)$cuda
  if ! LD_LIBRARY_PATH=$libraries "$peer/bin/python" -c 'import torch' \
    2>/dev/null; then
    "${pip[@]}" "torch==$torch"
    libraries=
  fi
  printf '%s\n' "$libraries" >"$peer/libraries"
  # DeepSpeed's setup imports torch; its operators are not built.
  "${pip[@]}" einops==0.8.2 hjson==3.1.0 msgpack==1.2.4 ninja==1.13.2 \
    psutil==7.2.2 py-cpuinfo==9.0.0 pydantic==2.14.3 tqdm==4.70.1
  LD_LIBRARY_PATH=$libraries DS_BUILD_OPS=0 DS_ACCELERATOR=cpu "${pip[@]}" \
    --no-deps --no-build-isolation "deepspeed==$deepspeed"
  # Only those dependencies that torchtitan's trainer imports.
  "${pip[@]}" --no-deps "torchtitan==$torchtitan" spmd_types==0.2.3 \
    tyro==1.0.17 docstring_parser==0.18.0 triton==3.9.0
  "${pip[@]}" torchdata==0.11.0 datasets==4.7.0 tokenizers==0.23.3 \
    tensorboard==2.21.0
  LD_LIBRARY_PATH=$libraries "$peer/bin/python" -c '
import torch
import torch.distributed.pipelining
print("torch", torch.__version__)'
}

case ${1:-} in
make) make_peer "${@:2}" ;;
run)
  python=${PIPELOOM_TORCH_PYTHON:-}
  if [ -z "$python" ] && [ -f "$peer/libraries" ]; then
    python=$peer/bin/python
    export LD_LIBRARY_PATH=$(cat "$peer/libraries")
  fi
  if [ -z "$python" ]; then
    echo "skipped: no torch with torch.distributed.pipelining;" \
      "scripts/torch_peer.sh make, or PIPELOOM_TORCH_PYTHON"
    exit 0
  fi
  exec "$python" "${@:2}"
  ;;
*) sed -nE '2,/^set/s/^# ?//p' "$0" >&2; exit 2 ;;
esac
