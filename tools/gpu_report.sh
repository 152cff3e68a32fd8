#!/usr/bin/env bash
# Runs on the GPU machine, from the unpacked bundle: the golden folders, every check, the timings, and last, because it
# is slow, the sanitizer over small shapes; writes gpu-report.md as it goes and one log each. Exit 1 when anything failed.
# Usage: run.sh OUT [AREA...]   (areas: rows, stream, ...; default all)
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?the folder for the report}
shift
mkdir -p "$out"
areas=("$@")
if ((${#areas[@]} == 0)); then
  for check in "$here"/bin/cuda_*_check; do
    name=$(basename "$check" _check)
    areas+=("${name#cuda_}")
  done
fi
report=$out/gpu-report.md
failed=0
query() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -1; }

# A second-by-second record of clock and power beside the runs.
nvidia-smi --query-gpu=timestamp,clocks.sm,power.draw,temperature.gpu --format=csv,noheader -l 1 >"$out/clocks.log" 2>/dev/null &
sampler=$!
trap 'kill $sampler 2>/dev/null' EXIT

{
  echo "# GPU report"
  echo
  echo "- commit: $(cat "$here/COMMIT")"
  echo "- date: $(date -u +%Y-%m-%d)"
  echo "- card: $(query name), driver $(query driver_version), power limit $(query power.limit), memory clock $(query clocks.max.mem)"
  echo "- times are medians after 0.4 s of the same load; floors are bytes over 4267 GB/s and operations over 672 (bf16)"
  echo "  or 1286 (fp8) TFLOP/s, the card's sustained rates"
} >"$report"

{
  echo
  echo "## Golden folders"
  echo
  echo '```'
} >>"$report"
for device in cpu cuda; do
  timeout 60 "$here/bin/mdi" check "$here/data/golden" --device "$device" >"$out/golden-$device.log" 2>&1
  code=$?
  {
    echo "mdi check golden --device $device"
    grep -E "^mdi:|backends\.|FAIL" "$out/golden-$device.log" | head -40
    tail -1 "$out/golden-$device.log" | sed "s|$here/data/||"
  } >>"$report"
  ((code == 0)) || failed=1
done
echo '```' >>"$report"

{
  echo
  echo "## Kernels against the CPU backend"
  echo
  echo "| area | checks | failed | exit |"
  echo "|---|--:|--:|--:|"
} >>"$report"
for area in "${areas[@]}"; do
  log=$out/$area.log
  timeout 150 "$here/bin/cuda_${area}_check" --time >"$log" 2>&1
  code=$?
  read -r checks wrong < <(awk '/^# .* checks, .* failed/ {print $3, $5}' "$log" | tail -1)
  echo "| $area | ${checks:--} | ${wrong:--} | $code |" >>"$report"
  ((code == 0)) || failed=1
done

{
  echo
  echo "## Times"
  echo
  echo "| area | kernel | shape | ms | TFLOP/s | GB/s | floor ms | reached |"
  echo "|---|---|---|--:|--:|--:|--:|--:|"
  for area in "${areas[@]}"; do
    awk -F'\t' -v area="$area" '/^TIME/ {
      for (i = 1; i <= NF; ++i) gsub(/^ +| +$/, "", $i)
      sub(/^TIME /, "", $1); sub(/ ms$/, "", $3); sub(/ TFLOP.s$/, "", $4); sub(/ GB.s$/, "", $5); sub(/^floor /, "", $6)
      print "| " area " | " $1 " | " $2 " | " $3 " | " $4 " | " $5 " | " $6 " | " $7 " |"
    }' "$out/$area.log"
  done
} >>"$report"

# Whole steps of one rank with synthetic weights; the bench compares 64 rows of every stage with the CPU backend.
{
  echo
  echo "## Whole steps"
} >>"$report"
bench() { # log, seconds, arguments
  local log=$out/$1.log limit=$2
  shift 2
  timeout "$limit" "$here/bin/mdi" bench "$@" >"$log" 2>&1
  local code=$?
  {
    echo
    echo '```'
    echo "mdi bench $*"
    cat "$log"
    ((code == 0)) || echo "exit $code"
    echo '```'
  } >>"$report"
  ((code == 0)) || failed=1
}
bench bench-step 150 step
bench bench-decode-64 60 decode --batch 64
bench bench-decode-256 60 decode --batch 256 --context 32768
bench bench-kernels 90 kernels

{
  echo
  echo "## compute-sanitizer over small shapes"
  echo
  echo "| area | result |"
  echo "|---|---|"
} >>"$report"
for area in "${areas[@]}"; do
  log=$out/$area.sanitizer.log
  if ! command -v compute-sanitizer >/dev/null; then
    echo "| $area | not there |" >>"$report"
    continue
  fi
  timeout 60 compute-sanitizer --error-exitcode 9 "$here/bin/cuda_${area}_check" --small >"$log" 2>&1
  code=$?
  echo "| $area | $(grep -m1 'ERROR SUMMARY' "$log" | sed 's/^=* *//'), exit $code |" >>"$report"
  ((code == 0)) || failed=1
done

{
  echo
  awk -F', ' '{sub(/ MHz/, "", $2); sub(/ W/, "", $3); if ($3 + 0 > top) {top = $3 + 0; clock = $2; heat = $4}}
    END {printf "Clock and power while this ran: at most %.0f W, then at %d MHz and %d degrees.\n", top, clock, heat}' "$out/clocks.log"
} >>"$report"
echo "$report: $( ((failed == 0)) && echo everything passed || echo something failed )"
exit $failed
