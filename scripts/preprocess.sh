#!/usr/bin/env bash
# Convert raw train/valid/test documents to binarised data, in one command. Raw form: one sentence per line, a blank line
# between documents, PREFIX.SRC and PREFIX.TGT aligned. All options: lasformer prepare --help
#
#   SRC=en TGT=de TRAIN=raw/train VALID=raw/dev TEST=raw/test scripts/preprocess.sh OUT [option...]
#   SRC=zh TGT=en ... TOKENIZER=none BPE=sentencepiece scripts/preprocess.sh OUT
#
# TRAIN, VALID and TEST may contain several prefixes, separated by spaces. Also: SIZE RESOLUTIONS LIMIT SEPARATOR WORKERS
set -euo pipefail -f
. "$(dirname "$0")/lib.sh"
[ $# -ge 1 ] || usage "$0"
out=$1
shift
args=(-s "${SRC:?source language}" -t "${TGT:?target language}" --workers "${WORKERS:-2}")
[ -z "${TRAIN:-}" ] || args+=(--train $TRAIN)
[ -z "${VALID:-}" ] || args+=(--valid $VALID)
[ -z "${TEST:-}" ] || args+=(--test $TEST)
for option in TOKENIZER BPE SIZE RESOLUTIONS LIMIT SEPARATOR; do
  [ -z "${!option:-}" ] || args+=("--${option,,}" "${!option}")
done
exec "$lasformer" prepare "$out" "${args[@]}" "$@"
