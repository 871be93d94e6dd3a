#!/usr/bin/env bash
# d-BLEU, s-BLEU and chrF of translated documents against raw references; a table, and JSON with --json FILE.
#
#   scripts/score.sh REFERENCE HYPOTHESES... [--json FILE] [--tokenize zh]
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 1; }
lasformer=$(dirname "$0")/../.venv/bin/lasformer
[ -x "$lasformer" ] || lasformer=lasformer
exec "$lasformer" score "$@"
