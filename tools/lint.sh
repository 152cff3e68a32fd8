#!/usr/bin/env bash
# clang-format and clang-tidy over the project's own sources; any finding fails.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t sources < <(git ls-files 'src/*.cpp' 'src/*.h' 'src/*.cu' 'src/*.cuh' 'tests/*.cpp' 'tests/*.h' 'tests/*.cu' 'bench/*.cpp')
clang-format --dry-run --Werror "${sources[@]}"
echo "clang-format: ${#sources[@]} files"

cmake --preset tidy >/dev/null
mapfile -t units < <(git ls-files 'src/*.cpp' | grep -v '^src/kernels/cuda/')
printf '%s\n' "${units[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy -p build/tidy --quiet 2>/dev/null
echo "clang-tidy: ${#units[@]} files"
