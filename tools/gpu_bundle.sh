#!/usr/bin/env bash
# Builds what the GPU machine needs beside the repository, whose golden data it reads, and packs it: the checks, mdi and
# the report script. Everything is linked statically but the C library. Usage: tools/gpu_bundle.sh [OUT.tar.xz] (build/gpu-bundle.tar.xz)
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/gpu-bundle.tar.xz}
build=build/gpu
limit=$((24 * 1024 * 1024)) # what has to travel

cmake --preset gpu >/dev/null
checks=()
for source in tests/cuda/*_check.c*; do
  name=$(basename "$source")
  checks+=("cuda_${name%.*}")
done
cmake --build "$build" --target mdi "${checks[@]}"

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/gpu/bin"
strip -o "$stage/gpu/bin/mdi" "$build/mdi"
for check in "${checks[@]}"; do strip -o "$stage/gpu/bin/$check" "$build/tests/$check"; done
if foreign=$(readelf -d "$stage"/gpu/bin/* | grep NEEDED | grep -vE 'lib(c|m)\.so|ld-linux'); then
  echo "what travels needs libraries that the GPU machine may not have:" "$foreign" >&2
  exit 1
fi
cp tools/gpu_report.sh "$stage/gpu/run.sh"
commit=$(git rev-parse HEAD)
git diff --quiet HEAD -- src tests CMakeLists.txt || commit+=", with changes"
echo "$commit" >"$stage/gpu/COMMIT"

# The device code is the same in every program: one dictionary over all of them keeps it once.
mkdir -p "$(dirname "$out")"
tar -C "$stage" -c gpu | xz -T1 --lzma2=preset=6,dict=128MiB >"$out"
size=$(stat -c %s "$out")
echo "$out: $size bytes"
if ((size > limit)); then
  echo "$out is larger than $limit bytes" >&2
  exit 1
fi
