#!/usr/bin/env bash
# Print d-BLEU, s-BLEU and chrF of translated documents against raw references; write JSON with --json FILE.
#
#   scripts/score.sh REFERENCE HYPOTHESES... [--json FILE] [--tokenize zh]
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[ $# -ge 2 ] || usage "$0"
exec "$lasformer" score "$@"
