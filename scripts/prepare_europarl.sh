#!/usr/bin/env bash
# Europarl v7, split as Maruf et al. 2019: to preprocessed data. See prepare_corpus.sh for what can be set.
exec "$(dirname "$0")/prepare_corpus.sh" europarl en-de "$@"
