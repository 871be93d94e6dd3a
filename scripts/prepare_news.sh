#!/usr/bin/env bash
# Prepare News Commentary v11, newstest2015 and newstest2016. See prepare_corpus.sh for the settings.
exec "$(dirname "$0")/prepare_corpus.sh" news en-de "$@"
