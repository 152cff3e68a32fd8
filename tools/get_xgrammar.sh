#!/usr/bin/env bash
# Fetches XGrammar's sources, pinned, into build/third_party: its C++ core is built from there (cmake/xgrammar.cmake).
# Quick when they are there. The source package of PyPI is the one archive with the core and the headers it needs.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.2.9
sha256=87b466bca2475e29bb0323abc62c6c33cbcbcff47e5fb800a3e2099ac9620b90
home=build/third_party
sources=$home/xgrammar-$version

mkdir -p "$home"
exec 9>"$home/xgrammar.lock"
flock 9 # two builds at once fetch it once
[[ -f "$sources/stamp" && "$(cat "$sources/stamp")" == "$sha256" ]] && exit 0

# Kept outside of the clone, so that another clone needs no network.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mini-deepinfer
archive=$cache/xgrammar-$version.tar.gz
matches() { [[ -f "$archive" ]] && echo "$sha256  $archive" | sha256sum --check --status; }
if ! matches; then
  echo "fetching XGrammar $version"
  mkdir -p "$cache"
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  python3 -m venv "$scratch/venv"
  "$scratch/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary xgrammar \
    --dest "$scratch" "xgrammar==$version"
  mv "$scratch/xgrammar-$version.tar.gz" "$archive.$$"
  mv "$archive.$$" "$archive"
  matches || {
    echo "$archive is not the expected file: expected sha256 $sha256, found $(sha256sum "$archive" | cut -d' ' -f1)" >&2
    exit 1
  }
fi

rm -rf "$sources" "$sources.new"
mkdir -p "$sources.new"
tar -xzf "$archive" -C "$sources.new" --strip-components=1 --no-same-owner \
  "xgrammar-$version"/{LICENSE,NOTICE,cpp,include,3rdparty/picojson,3rdparty/dlpack/include}
printf '%s\n' "$sha256" >"$sources.new/stamp"
mv "$sources.new" "$sources"
