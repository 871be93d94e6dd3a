#!/usr/bin/env bash
# TED talks, IWSLT 2017: to preprocessed data. See prepare_corpus.sh for what can be set.
exec "$(dirname "$0")/prepare_corpus.sh" ted en-de "$@"
