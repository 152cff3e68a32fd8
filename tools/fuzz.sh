#!/usr/bin/env bash
# Builds the fuzz targets, in the sanitizers' build, and runs each for a number of seconds, two at a time:
# tools/fuzz.sh SECONDS [TARGET...]
# What a run finds is left in build/fuzz/found; new inputs that reach new code gather in build/fuzz/corpus.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?usage: tools/fuzz.sh SECONDS [TARGET...]}
shift
targets=("$@")
if ((${#targets[@]} == 0)); then
  mapfile -t targets < <(cd tests/fuzz && ls -- *_fuzz.cpp | sed 's/_fuzz\.cpp$//')
fi
mkdir -p build/fuzz/found
cmake --preset asan >/dev/null
cmake --build build/asan --target "${targets[@]/%/_fuzz}" >build/fuzz/build.log || { cat build/fuzz/build.log; exit 1; }

run_target() {
  local name=$1 seconds=$2 dictionary=tests/fuzz/$1.dict
  mkdir -p "build/fuzz/corpus/$name"
  if ! "build/asan/tests/fuzz/${name}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 \
    -malloc_limit_mb=256 -max_len=16384 -print_final_stats=1 -artifact_prefix="build/fuzz/found/$name-" \
    ${dictionary:+$([[ -f $dictionary ]] && echo "-dict=$dictionary")} \
    "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name" 2>"build/fuzz/$name.log"; then
    tail -n 40 "build/fuzz/$name.log"
    return 1
  fi
  echo "$name: $seconds s, $(grep -m1 stat::number_of_executed "build/fuzz/$name.log" | tr -dc 0-9) runs"
}
export -f run_target
printf '%s\n' "${targets[@]}" | xargs -P 2 -I{} bash -c 'run_target {} '"$seconds"
