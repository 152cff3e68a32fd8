#!/bin/sh
# mdi check as a person meets it: a line a quantity, a summary, exit code 1 when a stored value is not reproduced.
# Usage: check.sh MDI
set -eu
mdi=$1
golden=$(dirname "$0")/../data/golden
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $1" >&2
  exit 1
}

# expect CODE WORDS COMMAND...: the exit code, and words that stdout or stderr must contain.
expect() {
  code=$1 words=$2
  shift 2
  found=0
  "$@" >"$work/out" 2>&1 || found=$?
  [ "$found" = "$code" ] || fail "exit code $found instead of $code: $* ($(tail -5 "$work/out"))"
  grep -qF -e "$words" "$work/out" || fail "no '$words' from: $* ($(tail -5 "$work/out"))"
}

expect 0 "0 failed" "$mdi" check "$golden" --only ops/
expect 0 "ops/markov_head.case0" "$mdi" check "$golden" --only ops/
expect 0 "tiny-text/prompt2/fed.layers.5.out" "$mdi" check "$golden" --only tiny-text/prompt2/fed. --threads 1
expect 0 '"ok": true' "$mdi" check "$golden" --only rmsnorm --only rope --only tiny-text/x --json
expect 1 "nothing was checked" "$mdi" check "$golden" --only no/such
expect 1 "mdi: $work/nothing" "$mdi" check "$work/nothing"
expect 2 "DIR" "$mdi" check

# One stored byte changed: its quantity fails, the others do not. The last tensor of the file is a mask.
mkdir "$work/ops"
cp "$golden/ops/ops.safetensors" "$golden/ops/params.json" "$work/ops"
size=$(wc -c <"$work/ops/ops.safetensors")
printf '\101' | dd of="$work/ops/ops.safetensors" bs=1 seek=$((size - 1)) conv=notrunc 2>/dev/null
expect 1 "FAIL" "$mdi" check "$work"
[ "$(grep -c FAIL "$work/out")" = 1 ] || fail "one byte, one failure: $(grep FAIL "$work/out")"
expect 1 '"ok": false' "$mdi" check "$work" --json
echo "ok"
