#!/usr/bin/env bash
# Prepare the TED talks of IWSLT 2017. See prepare_corpus.sh for the settings.
exec "$(dirname "$0")/prepare_corpus.sh" ted en-de "$@"
