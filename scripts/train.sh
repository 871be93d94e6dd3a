#!/usr/bin/env bash
# Trains on prepared data with the paper's base settings (4.1); every option of fairseq-train may follow and wins.
#
#   scripts/train.sh DATA SAVE_DIR [option of fairseq-train...]
#
# ARCH=lasformer  DROPOUT=0.1  WORD_DROPOUT=0.1  MAX_TOKENS=4096  UPDATE_FREQ=8  MAX_UPDATE=100000
# A killed run goes on from SAVE_DIR/checkpoint_last.pt; SAVE_DIR/train.log is what lasformer report reads.
# fairseq's own transformer: ARCH=transformer CRITERION=label_smoothed_cross_entropy
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 1; }
root=$(cd "$(dirname "$0")/.." && pwd)
train=$root/.venv/bin/fairseq-train
[ -x "$train" ] || train=fairseq-train
data=$1 save=$2
shift 2
mkdir -p "$save"
"$train" "$(realpath "$data")" --user-dir "$root/fairseq_lasformer" --task document_translation --save-dir "$save" \
  --arch "${ARCH:-lasformer}" --share-all-embeddings --dropout "${DROPOUT:-0.1}" --word-dropout "${WORD_DROPOUT:-0.1}" \
  --criterion "${CRITERION:-label_smoothed_cross_entropy_with_selection}" --label-smoothing 0.1 \
  --optimizer adam --adam-betas '(0.9,0.98)' --lr 0.0007 --lr-scheduler inverse_sqrt --warmup-updates 4000 \
  --max-tokens "${MAX_TOKENS:-4096}" --update-freq "${UPDATE_FREQ:-8}" --max-update "${MAX_UPDATE:-100000}" \
  --no-epoch-checkpoints --log-format json "$@" 2>&1 | tee -a "$save/train.log"
