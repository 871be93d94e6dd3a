#!/usr/bin/env bash
# Translate a prepared split and write detokenised documents, one per line, in input order, with their parts rejoined.
#
#   scripts/generate.sh DATA CHECKPOINT OUT [option of fairseq-generate...]
#
# SPLIT=test  BEAM=5  MAX_TOKENS=the longest example  SHARDS=4 (a killed run repeats at most JOBS of them)  JOBS=1
# FORMAT=lines (tabs between the sentences of a document) or raw (one sentence per line, like the input)
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[ $# -ge 3 ] || usage "$0"
data=$1 checkpoint=$2 out=$3
shift 3
options=(--beam "${BEAM:-5}")
[ -z "${MAX_TOKENS:-}" ] || options+=(--max-tokens "$MAX_TOKENS")
exec "$lasformer" generate "$data" "$checkpoint" "$out" --split "${SPLIT:-test}" --shards "${SHARDS:-4}" \
  --jobs "${JOBS:-1}" --layout "${FORMAT:-lines}" -- "${options[@]}" "$@"
