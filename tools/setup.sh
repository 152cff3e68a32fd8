#!/usr/bin/env bash
# Installs the Debian packages of tools/packages.txt that are missing, and fetches XGrammar's sources. Quiet and quick
# when nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t wanted < <(grep -v '^#' tools/packages.txt)
missing=()
for package in "${wanted[@]}"; do
  [[ -n "$package" ]] || continue
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
((${#missing[@]})) || exec tools/get_xgrammar.sh

if [[ $(id -u) -ne 0 ]]; then
  echo "these packages are missing and installing them needs root: ${missing[*]}" >&2
  exit 1
fi
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
tools/get_xgrammar.sh
