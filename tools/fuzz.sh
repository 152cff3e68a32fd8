#!/bin/sh
# Builds the fuzz targets and runs each for a number of seconds: tools/fuzz.sh SECONDS [TARGET...]
# What a run finds is left in build/fuzz/found; new inputs that reach new code gather in build/fuzz/corpus.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:?usage: tools/fuzz.sh SECONDS [TARGET...]}
shift
if [ $# -eq 0 ]; then
  set -- $(cd tests/fuzz && ls *_fuzz.cpp | sed 's/_fuzz\.cpp$//')
fi
[ -f build/fuzz/build.ninja ] || cmake --preset fuzz > /dev/null
mkdir -p build/fuzz/found
for name in "$@"; do
  cmake --build build/fuzz --target "${name}_fuzz" > build/fuzz/build.log || { cat build/fuzz/build.log; exit 1; }
  mkdir -p "build/fuzz/corpus/$name"
  dictionary=tests/fuzz/$name.dict
  echo "== $name: $seconds s"
  "build/fuzz/tests/fuzz/${name}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=256 \
    -max_len=16384 -print_final_stats=1 -artifact_prefix="build/fuzz/found/$name-" \
    $([ -f "$dictionary" ] && echo "-dict=$dictionary") "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name" \
    2> "build/fuzz/$name.log" || { tail -n 40 "build/fuzz/$name.log"; exit 1; }
  grep -E "^stat::(number_of_executed|new_units|slowest|peak)" "build/fuzz/$name.log"
done
