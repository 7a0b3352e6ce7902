#!/bin/bash
# Install the wheel of dist/ into a fresh environment that has numpy 2.1.3 and a torch, as Colab does, and fail if
# that changes either of them or if the package does not work there.
set -eo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=$folder/venv/bin/python
versions='import numpy, torch; print("numpy", numpy.__version__, "torch", torch.__version__)'

"$VENV/bin/python" -m venv "$folder/venv"
torch=$(sed -n '/^torch==/p' requirements.txt)
"$python" -m pip install --disable-pip-version-check --quiet numpy==2.1.3 "$torch"
before=$("$python" -c "$versions")
"$python" -m pip install --disable-pip-version-check dist/minigpt_course-*.whl
after=$("$python" -c "$versions")
echo "before: $before"
echo "after:  $after"
[ "$before" = "$after" ] || { echo 'make wheel-check: installing the wheel changed them' >&2; exit 1; }
cd "$folder"
unset PYTHONPATH
"$python" -m pip check
"$python" -m minigpt.verify --device cpu
"$python" -c 'import minigpt; print(minigpt.__file__)'
