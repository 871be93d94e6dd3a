#!/usr/bin/env bash
# Run one row of the paper's main table: prepare, train, average, translate, score. Resumes where it stopped. Same as
# lasformer reproduce, with its options as environment variables.
#
#   scripts/run.sh ted_en-de lasformer [Hydra override...]      corpora: ted_en-de news_en-de europarl_en-de pdc_zh-en
#                                                               (cut at 1,024 tokens), ted_en-de_whole (whole talks)
#                                                               systems: lasformer, and those of configs/systems.yaml
#   FILES=... scripts/run.sh tvsub_zh-en lasformer              the systems of examples/tvsub.yaml; see there
#   scripts/run.sh help_en-de lasformer                        the systems of examples/help.yaml
# GPUS=1  MAX_UPDATE=  PRECISION=fp16|bf16|fp32  BEAM=5  AVERAGE=5 (checkpoints)  LIMIT SIZE WORKERS  FILES TRUST=1
# On several nodes: see docs/reproduce.md. Without a GPU: GPUS=0 (fp32).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[ $# -ge 2 ] || usage "$0"
[ "${GPUS:-1}" = 0 ] && options=(--device cpu) || options=(--gpus "${GPUS:-1}")
options+=(--precision "${PRECISION:-fp16}" --beam "${BEAM:-5}" --average "${AVERAGE:-5}")
options+=(--size "${SIZE:-32000}" --workers "${WORKERS:-2}" --files "${FILES:-downloads}")
[ "${TRUST:-0}" != 1 ] || options+=(--trust-first-download)
for option in MAX_UPDATE MAX_TOKENS LIMIT; do
  [ -z "${!option:-}" ] || options+=("--$(tr A-Z_ a-z- <<<"$option")" "${!option}")
done
for override in "${@:3}"; do
  options+=(--set "$override")
done
exec "$lasformer" reproduce "$1" "$2" "${options[@]}"
