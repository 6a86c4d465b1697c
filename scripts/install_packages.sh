#!/usr/bin/env bash
# Installs the packages for Pipeloom that are missing on Debian 12 or Ubuntu
# 24.04, as root or with sudo. Silent if nothing is missing.
# usage: install_packages.sh [--service | --python | --tests]
#   --service  adds what the service and its Python client need
#   --python   adds what `pip install .` needs, with the service
#   --tests    adds what the tests need
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache pkg-config ca-certificates
  libabsl-dev libprotobuf-dev protobuf-compiler libtbb-dev
  nlohmann-json3-dev
)
if [ "${1:-}" = --service ]; then
  packages+=(libgrpc++-dev protobuf-compiler-grpc python3-grpcio python3-protobuf)
elif [ "${1:-}" = --python ]; then
  packages+=(libgrpc++-dev protobuf-compiler-grpc python3-dev python3-venv)
elif [ "${1:-}" = --tests ]; then
  # The second group: the service, MPI, torch, Python, and a browser for pages.
  packages+=(
    libgtest-dev libgmock-dev libbenchmark-dev git
    clang-19 libclang-rt-19-dev clang-format-14 python3
    libgrpc++-dev protobuf-compiler-grpc grpc-proto
    libopenmpi-dev openmpi-bin openssh-client
    libtorch-dev python3-torch libopenblas0-pthread python3-numpy
    python3-grpcio python3-protobuf libfaketime openssl python3-venv python3-dev
    chromium fonts-dejavu-core
  )
elif [ $# -gt 0 ]; then
  echo "unknown option \"$1\"; options: --service, --python, --tests" >&2
  exit 2
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "These packages are missing and neither root nor sudo is here:" \
         "${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "installing: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" apt-get update -qq &&
       "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get \
         -o DPkg::Lock::Timeout=300 install -y -qq \
         --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -20 "$log" >&2
  exit 1
fi
