#!/usr/bin/env bash
# One row of the paper's main table, in one command: prepare, train, average, translate, score. Resumes where it stopped.
#
#   scripts/run.sh ted_en-de lasformer [Hydra override...]      corpora: ted_en-de news_en-de europarl_en-de pdc_zh-en
#                                                               (cut at 1,024 tokens), ted_en-de_whole (whole talks)
#                                                               systems: transformer lasformer lasformer_moe, and
#                                                               for ted_en-de lasformer_delight delight_transformer
# GPUS=1  MAX_UPDATE=  PRECISION=fp16|bf16|fp32  BEAM=5  AVERAGE=5 (checkpoints)  FILES, TRUST: see prepare_corpus.sh
# On several nodes: see README. Without a GPU: GPUS=0 (fp32).
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 1; }
here=$(dirname "$0") experiment=$1 system=$2
shift 2
root=$(cd "$here/.." && pwd)
bin=$root/.venv/bin
[ -x "$bin/lasformer" ] || bin=$(dirname "$(command -v lasformer)")
corpus=${experiment%%_*} config=${experiment}_$system
[ -e "$root/configs/$config.yaml" ] || { echo "error: there is no configs/$config.yaml" >&2; exit 1; }
data=data-bin/$experiment/data out=runs/$experiment/$system gpus=${GPUS:-1} precision=${PRECISION:-fp16}
[[ $gpus =~ ^[0-9]+$ ]] || { echo "error: GPUS=$gpus: expected a number" >&2; exit 1; }
[[ $precision =~ ^(fp16|bf16|fp32)$ ]] || { echo "error: PRECISION=$precision: expected fp16, bf16 or fp32" >&2; exit 1; }
pair=${experiment#*_} pair=${pair%%_*}

limit=$(sed -n '/^task:/,/^model:/s/^  max_source_positions: //p' "$root/configs/$config.yaml")
LIMIT=${LIMIT:-$limit} "$here/prepare_$corpus.sh" "data-bin/$experiment"

# Hydra's grammar: between single quotes everything stays as it is, but for quotes and ${
quoted() { local value=${2//\'/\\\'}; printf "%s='%s'" "$1" "${value//\$\{/\\\$\{}"; }
overrides=("$(quoted task.data "$PWD/$data")" "$(quoted checkpoint.save_dir "$PWD/$out")" "$(quoted hydra.run.dir "$PWD/$out/hydra")")
[ -z "${MAX_UPDATE:-}" ] || overrides+=("optimization.max_update=$MAX_UPDATE")
# the paper's batches are 8 GPUs'; fewer make up for it by steps
overrides+=("optimization.update_freq=[$((gpus > 8 ? 1 : 8 / (gpus > 0 ? gpus : 1)))]")
if [ "$gpus" = 0 ]; then
  overrides+=(common.cpu=true) cpu=--cpu
else
  overrides+=("distributed_training.distributed_world_size=$gpus") cpu=
  [ "$precision" = fp32 ] || overrides+=("common.$precision=true")
  [ "$precision" != fp16 ] || [ "$system" != lasformer_moe ] || overrides+=(common.fp16_no_flatten_grads=true)
fi
mkdir -p "$out"
settings="${MAX_UPDATE:-all} $gpus $precision $*"
[ "$(cat "$out/settings" 2>/dev/null || echo "$settings")" = "$settings" ] || {
  echo "error: $out holds a run with other settings ($(cat "$out/settings")); remove it" >&2
  exit 1
}
echo "$settings" >"$out/settings"
if [ ! -e "$out/trained" ]; then
  (cd "$root" && PWD=$root "$bin/fairseq-hydra-train" --config-dir configs --config-name "$config" "${overrides[@]}" "$@") \
    2>&1 | tee -a "$out/train.log"
  touch "$out/trained"
fi

# kappa is the last one's; the newest checkpoints by their number of updates, the last one once
mapfile -t some < <(ls "$out"/checkpoint_*_*.pt 2>/dev/null | sort -V | tail -n "${AVERAGE:-5}")
[ ${#some[@]} = 0 ] || ! cmp -s "${some[-1]}" "$out/checkpoint_last.pt" || unset 'some[-1]'
if [ "$(cat "$out/averaged" 2>/dev/null)" != "${AVERAGE:-5}" ]; then
  "$bin/lasformer" average "$out/averaged.pt" "${some[@]}" "$out/checkpoint_last.pt"
  rm -f "$out/translated"
  echo "${AVERAGE:-5}" >"$out/averaged"
fi
search="--beam ${BEAM:-5} ${MAX_TOKENS:+--max-tokens $MAX_TOKENS}"
if [ "$(cat "$out/translated" 2>/dev/null)" != "$search" ]; then
  "$bin/lasformer" generate "$data" "$out/averaged.pt" "$out/hypotheses" -- $cpu $search
  echo "$search" >"$out/translated"
fi
score=()
[ "$corpus" != pdc ] || score=(--tcp "${FILES:-downloads}/pdc.test.en.candidates" --tcp-reference "${FILES:-downloads}/pdc.test.en.tok")
"$bin/lasformer" score "data-bin/$experiment/raw/test.${pair#*-}" "$out/hypotheses" --json "$out/scores.json" --allow-empty "${score[@]}"
