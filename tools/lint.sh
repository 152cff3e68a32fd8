#!/usr/bin/env bash
# clang-format and clang-tidy over the project's own sources; any finding fails.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t sources < <(git ls-files 'src/*.cpp' 'src/*.h' 'src/*.cu' 'src/*.cuh' 'tests/*.cpp' 'tests/*.h' 'tests/*.cu' 'bench/*.cpp')
clang-format --dry-run --Werror "${sources[@]}"
echo "clang-format: ${#sources[@]} files"

# From PyPI: it does not look for findings in other people's headers, which takes Debian's two thirds of its time. It
# has no omp.h of its own.
tools/python.sh
cmake --preset tidy >/dev/null
omp=$(clang++ -print-resource-dir)/include
tidy() {
  local found
  found=$(build/python/bin/clang-tidy -p build/tidy --quiet --extra-arg-before="-idirafter$1" "$2" 2>&1) && return
  printf '%s\n' "$2:" "$found"
  return 1
}
export -f tidy
mapfile -t units < <(git ls-files 'src/*.cpp' | grep -v '^src/kernels/cuda/')
printf '%s\n' "${units[@]}" | xargs -P "$(nproc)" -I{} bash -c "tidy '$omp' {}"
echo "clang-tidy: ${#units[@]} files"
