#!/usr/bin/env bash
# Trains on prepared data with the paper's base settings (arXiv 2309.14174, section 4.1). Any options of fairseq-train may
# follow, and take precedence.
#
#   scripts/train.sh DATA SAVE_DIR [option of fairseq-train...]
#
# ARCH=lasformer  DROPOUT=0.1  WORD_DROPOUT=0.1  MAX_TOKENS=4096  UPDATE_FREQ=8  MAX_UPDATE=100000
# SAVE_EVERY=100 LOG_EVERY=10 (updates). A killed run resumes from SAVE_DIR/checkpoint_last.pt, a finished one is left
# unchanged; lasformer report reads SAVE_DIR/train.log. Uses fp16 if there is a GPU and --cpu otherwise, unless --fp16,
# --bf16 or --cpu is given. fairseq's own transformer: ARCH=transformer CRITERION=label_smoothed_cross_entropy
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[ $# -ge 2 ] || usage "$0"
root=$(cd "$(dirname "$0")/.." && pwd)
train=${bin:+$bin/}fairseq-train python=${bin:+$bin/}python3
data=$1 save=$2
shift 2
device=()
case " $* " in
  *" --cpu "*|*" --fp16 "*|*" --bf16 "*) ;;
  *) if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then device=(--fp16); else device=(--cpu); fi ;;
esac
mkdir -p "$save"
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-1000} # see fairseq_lasformer/threads.py
exec "$train" "$(realpath "$data")" --user-dir "$root/fairseq_lasformer" --task document_translation --save-dir "$save" \
  --arch "${ARCH:-lasformer}" --share-all-embeddings --dropout "${DROPOUT:-0.1}" --word-dropout "${WORD_DROPOUT:-0.1}" \
  --criterion "${CRITERION:-label_smoothed_cross_entropy_with_selection}" --label-smoothing 0.1 \
  --optimizer adam --adam-betas '(0.9,0.98)' --lr 0.0007 --lr-scheduler inverse_sqrt --warmup-updates 4000 \
  --max-tokens "${MAX_TOKENS:-4096}" --update-freq "${UPDATE_FREQ:-8}" --max-update "${MAX_UPDATE:-100000}" \
  --save-interval-updates "${SAVE_EVERY:-100}" --keep-interval-updates 1 --no-epoch-checkpoints \
  --log-format json --log-interval "${LOG_EVERY:-10}" "${device[@]}" "$@" > >(tee -a "$save/train.log") 2>&1
