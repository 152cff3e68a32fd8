#!/usr/bin/env bash
# Makes build/python, the Python that the server's tests and the linter use, from tools/requirements.txt. Quick when it is there
# and nothing has changed; made anew when something has.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=$(python3 --version; sha256sum <tools/requirements.txt)
mkdir -p build
exec 9>build/python.lock
flock 9  # two test runs at once make it once
[[ -f build/python/stamp && "$(cat build/python/stamp)" == "$wanted" ]] && exit 0

echo "making build/python from tools/requirements.txt"
rm -rf build/python
python3 -m venv build/python
build/python/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps \
  -r tools/requirements.txt
build/python/bin/python -m pip check --disable-pip-version-check
printf '%s\n' "$wanted" >build/python/stamp
