#!/usr/bin/env bash
# Dense products beside oneDNN's own rate in the same run, and decode of a tiny checkpoint. Usage: tools/bench.sh BUILD
set -euo pipefail
build=$1
"$build"/bench/bench_gemm
dir=build/demo/tiny
if [[ ! -f $dir/config.json ]]; then
  mkdir -p build/demo
  "$build"/mdi synth --preset tiny --seed 1 "$dir"
fi
echo "decode of a tiny checkpoint:"
"$build"/mdi generate --model "$dir" --prompt-ids 17,23,42,99,7 --max-tokens 200 --ignore-eos 2>&1 >/dev/null
