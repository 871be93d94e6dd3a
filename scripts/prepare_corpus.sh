#!/usr/bin/env bash
# Turn the public distribution of one of the paper's corpora into preprocessed data. Called by prepare_{ted,news,...}.sh
#
#   FILES=downloads TRUST=1 scripts/prepare_ted.sh [OUT [option of preprocess.sh...]]     OUT: default data-bin/ted_en-de
#
# Files found in FILES are used, others are downloaded. Files without a published checksum are downloaded only with
# TRUST=1, and their hashes are stored. As in the paper, there is no separator
# between sentences: translations have no lines. LIMIT (tokens per example), SIZE (subwords), WORKERS: see preprocess.sh.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
here=$(dirname "$0")
name=$1 pair=$2 out=${3:-data-bin/$1_$2}
raw=$out/raw
trust=()
[ "${TRUST:-0}" != 1 ] || trust=(--trust-first-download)
"$lasformer" corpus "$name" "$raw" --files "${FILES:-downloads}" "${trust[@]}"
SRC=${pair%-*} TGT=${pair#*-} TRAIN=$raw/train VALID=$raw/dev TEST=$raw/test LIMIT=${LIMIT:-1024} \
  SIZE=${SIZE:-32000} "$here/preprocess.sh" "$out/data" --separator "" --drop-empty "${@:4}"
