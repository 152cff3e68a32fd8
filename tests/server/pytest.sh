#!/usr/bin/env bash
# pytest.sh FOLDER...: the tests of the server that are written in Python, with the packages of tools/requirements.txt.
# ctest names the program in MDI.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
"$root/tools/python.sh"
exec "$root/build/python/bin/python" -m pytest -q -p no:cacheprovider --tb=short "$@"
