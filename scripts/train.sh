#!/usr/bin/env bash
# Train the paper's base model on prepared data, or a tiny one on fewer than 50,000 sentences (docs/training.md). Same as
# lasformer train, with its options as environment variables. Any options of fairseq-train may follow, and take precedence.
#
#   scripts/train.sh DATA SAVE_DIR [option of fairseq-train...]
#
# SMALL_CORPUS=yes|no (by size)  ARCH=lasformer  CRITERION  DROPOUT=0.1  WORD_DROPOUT=0.1  LR=0.0007  WARMUP=4000  MAX_TOKENS=4096  UPDATE_FREQ=8
# MAX_UPDATE=100000  PATIENCE=10 (validations)  SAVE_EVERY=500 LOG_EVERY=10 (updates)  SAVE_MINUTES=10  PRECISION=auto
# A killed run resumes from SAVE_DIR/checkpoint_last.pt, a finished one is left unchanged.
# The log is SAVE_DIR/train.log. Uses bf16 (or fp16) if there is a GPU and the CPU otherwise, unless --fp16, --bf16 or --cpu is given.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[ $# -ge 2 ] || usage "$0"
data=$1 save=$2
shift 2
options=()
for option in ARCH CRITERION DROPOUT WORD_DROPOUT LR WARMUP MAX_TOKENS UPDATE_FREQ MAX_UPDATE PATIENCE SAVE_EVERY \
  SAVE_MINUTES LOG_EVERY PRECISION; do
  [ -z "${!option:-}" ] || options+=("--$(tr A-Z_ a-z- <<<"$option")" "${!option}")
done
case "${SMALL_CORPUS:-}" in
  "") ;;
  yes) options+=(--small-corpus) ;;
  no) options+=(--no-small-corpus) ;;
  *) usage "$0" ;;
esac
exec "$lasformer" train "$data" "$save" "${options[@]}" -- "$@"
