#!/usr/bin/env bash
# PDC, Sun et al. 2022 (its training set must be in FILES): to preprocessed data. See prepare_corpus.sh for what can be set.
export TOKENIZER=${TOKENIZER:-none} BPE=${BPE:-sentencepiece}
exec "$(dirname "$0")/prepare_corpus.sh" pdc zh-en "$@"
