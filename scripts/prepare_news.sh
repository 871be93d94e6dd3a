#!/usr/bin/env bash
# News Commentary v11, newstest2015 and newstest2016: to preprocessed data. See prepare_corpus.sh for what can be set.
exec "$(dirname "$0")/prepare_corpus.sh" news en-de "$@"
