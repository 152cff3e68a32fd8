#!/usr/bin/env bash
# Runs on the GPU machine, in the repository, from the unpacked bundle: the golden folders, an image through both
# backends, every check and the sanitizer over small shapes, several at once, then whole steps, what is said of a full
# card, a soak of the server, and each area's own timings; writes gpu-report.md as it goes and one log each. About 380 s: 80 s less with an
# empty MDI_REPORT_BENCH (no whole steps); MDI_REPORT_SANITIZER names the areas for the sanitizer (default all), and
# after MDI_REPORT_SECONDS no further area is timed. Exit 1 when anything failed.
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
scratch=$(mktemp -d)
trap 'kill $sampler 2>/dev/null; rm -rf "$scratch"' EXIT
mdi=$here/bin/mdi
golden=$PWD/tests/data/golden
[[ -d $golden ]] || golden=$here/data/golden
if [[ ! -d $golden ]]; then
  echo "expected tests/data/golden here (run this from the repository) or $golden, found neither" >&2
  exit 2
fi
export MDI_GOLDEN=$golden

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
  timeout 60 "$mdi" check "$golden" --device "$device" >"$out/golden-$device.log" 2>&1
  code=$?
  {
    echo "mdi check golden --device $device"
    grep -E "^mdi:|backends\.|FAIL" "$out/golden-$device.log" | head -60
    tail -1 "$out/golden-$device.log" | sed "s|${golden%golden}||"
  } >>"$report"
  ((code == 0)) || failed=1
done
for device in cpu cuda; do
  echo "mdi generate --image --device $device"
  timeout 60 "$mdi" generate --model "$golden/tiny-vision" --image "$golden/tiny-vision/image1.png" \
    --prompt-ids 0,5,251,9,11 --max-tokens 24 --ignore-eos --device "$device" 2>"$out/generate-$device.log" |
    tee "$scratch/generate-$device"
done >>"$report"
# The same tokens are not asked for: a flipped rounding in the tower is within its contract, and the weights are random.
[[ -s $scratch/generate-cpu && -s $scratch/generate-cuda ]] || failed=1
echo '```' >>"$report"

# The checks of whole models also want a checkpoint of the released widths: 2.6 GB, made here.
if "$mdi" synth "$scratch/slice" --preset slice --quiet >"$out/synth.log" 2>&1; then
  export MDI_SLICE=$scratch/slice
fi

# Four programs at a time: most of a check is the oracle's work, and most of a sanitizer's run is its own.
run_area() { # check or sanitize, area
  local begin=$SECONDS
  if [[ $1 == check ]]; then
    timeout 150 "$here/bin/cuda_$2_check" >"$out/$2.log" 2>&1
  else
    timeout 150 compute-sanitizer --error-exitcode 9 "$here/bin/cuda_$2_check" --small >"$out/$2.sanitizer.log" 2>&1
  fi
  echo "$? $((SECONDS - begin))" >"$scratch/$2.$1"
}
others() { jobs -rp | grep -v "^$sampler\$"; }
for work in check sanitize; do
  [[ $work == check ]] || command -v compute-sanitizer >/dev/null || continue
  for area in "${areas[@]}"; do
    [[ $work == check || " ${MDI_REPORT_SANITIZER-${areas[*]}} " == *" $area "* ]] || continue
    # The engine's checks compare the card's free memory with a plan: nothing else may run then.
    if [[ $work == check && $area == engine ]]; then
      while (($(others | wc -l) > 0)); do sleep 0.2; done
      run_area "$work" "$area"
      continue
    fi
    while (($(others | wc -l) >= 4)); do sleep 0.2; done
    run_area "$work" "$area" &
  done
done
for job in $(others); do wait "$job"; done

{
  echo
  echo "## Kernels against the CPU backend"
  echo
  echo "Seconds are those of programs that share the card and the processor."
  echo
  echo "| area | checks | failed | exit | seconds | compute-sanitizer over small shapes |"
  echo "|---|--:|--:|--:|--:|---|"
} >>"$report"
for area in "${areas[@]}"; do
  read -r checks wrong < <(awk '/^# .* checks, .* failed/ {print $3, $5}' "$out/$area.log" | tail -1)
  read -r code seconds <"$scratch/$area.check"
  ((code == 0)) || failed=1
  sanitizer="not run"
  if [[ -e $scratch/$area.sanitize ]]; then
    read -r spotless sanitized <"$scratch/$area.sanitize"
    ((spotless == 0)) || failed=1
    sanitizer="$(grep -m1 'ERROR SUMMARY' "$out/$area.sanitizer.log" | sed 's/^=* *//'), exit $spotless, $sanitized s"
  fi
  echo "| $area | ${checks:--} | ${wrong:--} | $code | $seconds | $sanitizer |" >>"$report"
done
{
  echo
  echo '```'
  grep -h "^FAIL" "$out"/*.log | head -40
  echo '```'
} >>"$report"

# Whole steps of one rank with synthetic weights; the bench compares 64 rows of every stage with the CPU backend.
if [[ -n ${MDI_REPORT_BENCH-yes} ]]; then
  printf '\n## Whole steps\n' >>"$report"
fi
bench() { # log, seconds, arguments
  local log=$out/$1.log limit=$2
  [[ -n ${MDI_REPORT_BENCH-yes} ]] || return 0
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
  echo "## A full card"
  echo
  echo '```'
} >>"$report"
# Another process holds all but 1 GB; the plan must be said before anything is loaded.
if ! python3 - "$mdi" "$golden/tiny-vision" >"$out/full.log" 2>&1 <<'P'
import subprocess, sys, torch
free, total = torch.cuda.mem_get_info()
hold = torch.empty(free - (1 << 30), dtype=torch.uint8, device="cuda")
run = subprocess.run([sys.argv[1], "generate", "--model", sys.argv[2], "--prompt-ids", "1,2,3", "--device", "cuda"],
                     capture_output=True, text=True, timeout=30)
print(run.stderr.strip())
print("exit", run.returncode)
sys.exit(0 if run.returncode == 1 and "too few" in run.stderr else 1)
P
then
  failed=1
fi
{
  head -40 "$out/full.log"
  echo '```'
} >>"$report"

# The bundled model, in one process: many requests at once and one after the other, with and without its draft layers.
if [[ -d models/small && -n ${MDI_REPORT_BENCH-yes} ]]; then
  printf '\n## Many requests at once\n' >>"$report"
  for slots in 64 1; do
    for draft in none dspark; do
      bench "serve-$slots-$draft" 60 serve --model models/small --device cuda --requests $((slots * 4 + 12)) --rate 0 \
        --slots "$slots" --max-queue 1000 --draft "$draft"
    done
  done
fi

# The bundled model, served: many clients that hang up, stall and send rubbish (tests/server/soak.py).
if [[ -d models/small ]]; then
  {
    echo
    echo "## Serving"
    echo
    echo '```'
    echo "soak.py mdi models/small --streams 1000 --seconds 20 --device cuda"
  } >>"$report"
  MDI_SOAK_LOG=$out/serve.log timeout 100 python3 tests/server/soak.py "$mdi" models/small --streams 1000 --seconds 20 \
    --device cuda --growth 64 >"$out/soak.log" 2>&1
  code=$?
  ((code == 0)) || failed=1
  {
    cat "$out/soak.log"
    echo "exit $code"
    echo '```'
  } >>"$report"
fi

{
  echo
  echo "## Times"
  echo
  echo "| area | kernel | shape | ms | TFLOP/s | GB/s | floor ms | reached |"
  echo "|---|---|---|--:|--:|--:|--:|--:|"
} >>"$report"
for area in "${areas[@]}"; do
  case $area in model | engine | replay | errors) continue ;; esac  # nothing of theirs is timed
  if ((SECONDS > ${MDI_REPORT_SECONDS:-3600})); then
    echo "| $area | not timed: the report's time was up |" >>"$report"
    continue
  fi
  timeout 150 "$here/bin/cuda_${area}_check" --times >"$out/$area.times.log" 2>&1
  awk -F'\t' -v area="$area" '/^TIME/ {
    for (i = 1; i <= NF; ++i) gsub(/^ +| +$/, "", $i)
    sub(/^TIME /, "", $1); sub(/ ms$/, "", $3); sub(/ TFLOP.s$/, "", $4); sub(/ GB.s$/, "", $5); sub(/^floor /, "", $6)
    print "| " area " | " $1 " | " $2 " | " $3 " | " $4 " | " $5 " | " $6 " | " $7 " |"
  }' "$out/$area.times.log" >>"$report"
done

{
  echo
  awk -F', ' '{sub(/ MHz/, "", $2); sub(/ W/, "", $3); if ($3 + 0 > top) {top = $3 + 0; clock = $2; heat = $4}}
    END {printf "Clock and power while this ran: at most %.0f W, then at %d MHz and %d degrees.\n", top, clock, heat}' "$out/clocks.log"
} >>"$report"
echo "$report: $( ((failed == 0)) && echo everything passed || echo something failed )"
exit $failed
