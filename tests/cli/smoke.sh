#!/bin/sh
# The command line as a person meets it: exit codes, messages on stderr, and folders that are whole or not there.
# Usage: smoke.sh MDI
set -eu
mdi=$1
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
  [ "$found" = "$code" ] || fail "exit code $found instead of $code: $* ($(cat "$work/out"))"
  grep -qF -e "$words" "$work/out" || fail "no '$words' from: $* ($(cat "$work/out"))"
}

expect 0 "mdi 0." "$mdi" --version
expect 0 "synth" "$mdi" --help
expect 0 "--seed" "$mdi" synth --help
expect 2 "unknown command 'frobnicate'" "$mdi" frobnicate
expect 2 "required" "$mdi"
expect 2 "DIR" "$mdi" synth
expect 2 "--bogus" "$mdi" synth --bogus "$work/x"
expect 2 "--layers: expected" "$mdi" synth --layers 0 "$work/x"
expect 2 "not in" "$mdi" synth --preset huge "$work/x"
[ ! -e "$work/x" ] || fail "a usage error left a folder"

expect 0 "1202 tensors in 14 files, 5068168 bytes" "$mdi" synth "$work/tiny"
expect 1 "mdi: $work/tiny: the folder is not empty" "$mdi" synth "$work/tiny"
expect 0 "seed 5" "$mdi" synth --force --seed 5 --trained "$work/tiny"
expect 0 "5,068,168" "$mdi" inspect "$work/tiny"
expect 0 "configuration only" "$mdi" inspect "$work/tiny/config.json"
expect 0 "in 10 files" "$mdi" synth --preset tiny-vision "$work/vision"
expect 0 "tensors" "$mdi" synth --config "$work/vision/config.json" --layers 4 --draft-layers 0 "$work/shorter"
expect 0 "4 layers" "$mdi" inspect "$work/shorter"

# Numbers out of range: the option, what it takes, and what it was given.
expect 2 "--queue: expected 1 or more, found 0" "$mdi" serve --queue 0 "$work/tiny"
expect 2 "--blocks: expected 1 or more, found 0" "$mdi" serve --blocks 0 "$work/tiny"
expect 2 "--threads: expected 0 to 1024, found 100000" "$mdi" serve --threads 100000 "$work/tiny"
expect 2 "--threads: expected 0 to 1024, found -1" "$mdi" generate --threads -1 --model "$work/tiny" --prompt-ids 1
expect 2 "--timeout: expected 0 to 86400 (a day), found inf" "$mdi" serve --timeout inf "$work/tiny"
for seconds in -1 86401 1e10 1e300 nan inf soon; do
  expect 2 "--drain-seconds: expected 0 to 86400 (a day), found $seconds" "$mdi" serve --drain-seconds "$seconds" "$work/tiny"
done
expect 2 "--max-tokens: expected 1 or more, found 0" "$mdi" chat --max-tokens 0 --model "$work/tiny"
expect 2 "--max-tokens: expected 1 or more, found -1" "$mdi" generate --max-tokens -1 --model "$work/tiny" --prompt-ids 1
expect 2 "--max-tokens: expected at most 2147483647, found 9999999999" "$mdi" generate --max-tokens 9999999999 --model "$work/tiny" --prompt-ids 1
expect 2 "--speed: expected a number above 0, found 0" "$mdi" bench serve --speed 0 --model "$work/tiny"
# Options that would do nothing, or something else than they say.
expect 2 "--host-memory: expected" "$mdi" serve --host-memory -1 "$work/tiny"
expect 2 "--device-memory: expected with --device cuda" "$mdi" serve --device-memory 1GB "$work/tiny"
expect 2 "--bound-last-source requires --replay" "$mdi" generate --bound-last-source --model "$work/tiny" --prompt-ids 1
expect 2 "--bound-last-source requires --replay" "$mdi" bench serve --bound-last-source --model "$work/tiny"
expect 0 "requests" "$mdi" bench serve --replay 128 --bound-last-source --model "$work/tiny" --requests 2 --prompt-min 150 \
  --prompt-max 160 --output-min 2 --output-max 4
expect 2 "DIR: expected some text, found none" "$mdi" serve ""
expect 2 "--stop: expected some text, found none" "$mdi" generate --stop "" --model "$work/tiny" --prompt-ids 1
expect 1 "--stop-ids: expected 0 to" "$mdi" generate --stop-ids 99999 --model "$work/tiny" --prompt-ids 1

# The bench needs a GPU; what it is asked is checked before it looks for one.
expect 0 "decode" "$mdi" bench --help
expect 2 "--batch" "$mdi" bench decode --batch 0
expect 2 "--routing" "$mdi" bench step --routing even
expect 2 "even numbers" "$mdi" bench step --tokens 4096 --context 1024
expect 2 "--sequences" "$mdi" bench kernels --tokens 7 --sequences 2

# A damaged checkpoint is refused with the file's name.
rm "$work/vision/model-00002-of-00010.safetensors"
expect 1 "model-00002-of-00010.safetensors" "$mdi" inspect "$work/vision"
expect 2 "does not exist" "$mdi" inspect "$work/nothing"

# The released shapes, as holes: the published counts, and the plan of one of four ranks.
expect 0 "96085 tensors in 48 files, 510286023000 bytes" "$mdi" synth --preset released "$work/released"
expect 0 "510,286,023,000" "$mdi" inspect "$work/released"
expect 0 "does not fit" "$mdi" inspect "$work/released" --ep 4 --device-memory 80GiB
expect 0 "--ep 8" "$mdi" inspect "$work/released" --ep 4 --device-memory 80GiB
expect 2 "--device-memory" "$mdi" inspect "$work/released" --device-memory lots
"$mdi" inspect "$work/released" --ep 4 --device-memory 150GB >"$work/plan"
for number in 11,530,714,440 72,194,457,600 1,804,861,440 "85.53 GB" 50,689,508,100 "113,920 bytes" "890 bytes a token"; do
  grep -qF -e "$number" "$work/plan" || fail "the plan lacks $number"
done
"$mdi" inspect "$work/released" --json --ep 4 --device-memory 150GB >"$work/plan"
grep -qF '"engram_share_bytes": 50689508100' "$work/plan" || fail "the JSON plan lacks the engram share"

# Killed while it writes, it leaves no folder of that name; the next run is not hindered.
"$mdi" synth --plain --quiet --layers 300 "$work/killed" >/dev/null 2>&1 &
pid=$!
while [ "$(ls "$work/killed.partial" 2>/dev/null | wc -l)" -lt 3 ] && kill -0 "$pid" 2>/dev/null; do :; done
kill -9 "$pid" 2>/dev/null || fail "the writer ended before it was killed"
wait "$pid" 2>/dev/null || true
[ ! -e "$work/killed" ] || fail "a killed writer left a folder"
expect 0 "1202 tensors" "$mdi" synth "$work/killed"
[ ! -e "$work/killed.partial" ] || fail "the partial folder is still there"
echo "ok"
