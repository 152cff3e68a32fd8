#!/usr/bin/env bash
# What `make run` does until a trained model is bundled: writes a tiny checkpoint with random weights and generates from
# it. Usage: tools/demo.sh MDI
set -euo pipefail
mdi=$1
dir=build/demo/tiny

if [[ ! -f $dir/config.json ]]; then
  mkdir -p build/demo
  "$mdi" synth --preset tiny --seed 1 "$dir"
fi
"$mdi" inspect "$dir"
echo
echo "The weights are random, so the tokens below mean nothing: what they show is that the whole path runs."
"$mdi" generate --model "$dir" --prompt-ids 17,23,42,99,7 --max-tokens 48 --ignore-eos
