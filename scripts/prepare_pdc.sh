#!/usr/bin/env bash
# Prepare PDC, Sun et al. 2022 (its training set must be in FILES). See prepare_corpus.sh for the settings.
export TOKENIZER=${TOKENIZER:-none} BPE=${BPE:-sentencepiece}
exec "$(dirname "$0")/prepare_corpus.sh" pdc zh-en "$@"
