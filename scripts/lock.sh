#!/usr/bin/env bash
# Write constraints.txt: every package that scripts/setup.sh installs, with version and hashes of all of its files.
# torch (its builds differ by index) and fairseq-fixed are pinned in setup.sh. Run it to update; tests check that it
# matches setup.py.
#
#   scripts/lock.sh [option of pip-compile, such as --upgrade...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
.venv/bin/python -m venv "$tools"
"$tools/bin/python" -m pip install --quiet pip-tools 'setuptools>=77' wheel
"$tools/bin/pip-compile" --quiet --generate-hashes --allow-unsafe --strip-extras --no-header --no-emit-index-url \
  --no-emit-find-links --no-emit-trusted-host --no-build-isolation --no-annotate \
  --extra build --extra dev --extra evaluation --extra ray --extra server --extra tensorboard --output-file constraints.txt "$@" setup.py
