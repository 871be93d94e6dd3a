#!/usr/bin/env bash
# Prepare Europarl v7, split as in Maruf et al. 2019. See prepare_corpus.sh for the settings.
exec "$(dirname "$0")/prepare_corpus.sh" europarl en-de "$@"
