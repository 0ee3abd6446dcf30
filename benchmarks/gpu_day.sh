#!/bin/sh
# All that is measured on a GPU, into one folder; run again with that folder, it goes on from there.
#
#     benchmarks/gpu_day.sh OUT [SECONDS [STAGE...]]
#
# SECONDS (default 3000) are shared out among the stages: tests accuracy kernels networks others.
# Needs CuPy and PyTorch for CUDA; nvidia-cudnn-frontend 1.18 and Matplotlib where they are to be
# had. PYTHON names the interpreter, COMMIT the commit where the checkout is not one of git's.
set -eu

out=${1:?usage: benchmarks/gpu_day.sh OUT [SECONDS [STAGE...]]}
seconds=${2:-3000}
[ $# -ge 2 ] && shift 2 || shift 1
[ $# -gt 0 ] || set -- tests accuracy kernels networks others
python=${PYTHON:-python3}
cd "$(dirname "$0")/.."
mkdir -p "$out"
export NVIDIA_TF32_OVERRIDE=0  # no library may use TF32, whatever it is asked for
commit=${COMMIT:+--commit $COMMIT}

share() { echo $((seconds * $1 / 100)); }

for stage; do
  echo "== $stage"
  case $stage in
    # Nothing is measured with kernels that are wrong.
    tests)
      $python -m pytest -m gpu -q -x -p no:cacheprovider \
        tests/kernels tests/benchmarks/kernels/test_sides_on_a_gpu.py tests/models/engines/test_cuda_engine.py ;;
    accuracy) $python -m benchmarks.kernels --accuracy --out "$out" $commit ;;
    # N for which goals are set first, then whole networks, then the other N.
    kernels)
      $python -m benchmarks.kernels --n 1 --n 8 --budget-s "$(share 45)" --out "$out" $commit ;;
    networks) $python -m benchmarks.networks --budget-s "$(share 20)" --out "$out" $commit ;;
    others) $python -m benchmarks.kernels --budget-s "$(share 20)" --out "$out" $commit ;;
    *) echo "no stage $stage" >&2; exit 2 ;;
  esac
done
