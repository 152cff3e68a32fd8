#!/usr/bin/env bash
# What `make run` does: shows the bundled model, lets it continue a text and answer questions.
# Usage: tools/demo.sh MDI
set -euo pipefail
mdi=$1
model=models/small

"$mdi" inspect "$model" | sed -n '1,10p'
say() { # title prompt tokens
  echo
  echo "-- $1"
  "$mdi" generate --model "$model" --prompt "$2" --max-tokens "$3" --temperature 0.6 --top-p 0.9 --seed 3
}
say "It goes on with: Overview. SQLite is ..." $'<｜begin▁of▁sentence｜>Overview\n\nSQLite is' 96
say "Hello!" "<｜begin▁of▁sentence｜><｜User｜>Hello!<｜Assistant｜></think>" 64
say "What is a sailing ship?" "<｜begin▁of▁sentence｜><｜User｜>What is a sailing ship?<｜Assistant｜></think>" 64
echo
echo "Talk to it: $mdi chat --model $model --no-thinking    (it is very small: models/small/README.md says what to expect)"
