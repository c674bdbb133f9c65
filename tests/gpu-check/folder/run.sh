#!/bin/sh
# Checks Aliquot on this machine's NVIDIA GPU: ./run.sh [--quick] [--only PART,...] [--json FILE] No root, no network,
# nothing to install. README.txt explains the check and its results.
set -eu
folder=$(cd "$(dirname "$0")" && pwd)
exec "$folder/aliquot-gpu-check" --programs "$folder" "$@"
