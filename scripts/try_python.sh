#!/usr/bin/env bash
# Runs README's two commands as a user without rights in a minimal Debian with another Python; then installs the wheels in one
# without compiler, translates and trains. Prints what failed. Needs debootstrap, and root.
#
#   scripts/try_python.sh 3.11 [FOLDER]    bookworm; 3.13: trixie; 3.14: testing. FOLDER, /var/tmp/lasformer-debian by default, keeps
#                                          the systems and the logs. TARGETS="demo test" are the targets of make; TORCH and
#                                          PIP_EXTRA_INDEX_URL as for setup.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1:-} in
  3.11) suite=bookworm ;;
  3.13) suite=trixie ;;
  3.14) suite=testing ;;
  *) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
python=$1
folder=$(realpath -m "${2:-/var/tmp/lasformer-debian}")
torch=${TORCH:-torch==2.13.0}
mkdir -p "$folder"

say() { echo "$python: $*" >&2; }
mounted=()
leave() { for place in "${mounted[@]}"; do umount -l "$place"; done; }
trap leave EXIT

# system ROOT PACKAGE...: a Debian with these packages, the network of this machine, and a user
system() {
  local root=$1
  shift
  if [ ! -e "$root/.complete" ]; then
    rm -rf "$root"
    debootstrap --variant=minbase --include="$(IFS=,; echo "$*")" "$suite" "$root" >"$root.log" 2>&1 ||
      { tail -n 5 "$root.log" >&2; exit 1; }
    chroot "$root" useradd --create-home --shell /bin/bash newcomer
    touch "$root/.complete"
  fi
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
  mount -t proc proc "$root/proc"
  mounted+=("$root/proc")
  mount --rbind --make-rslave /dev "$root/dev" # what is unmounted here stays mounted outside
  mounted+=("$root/dev")
}

# newcomer ROOT COMMAND: run by the user in that system, in an environment of its own
newcomer() {
  chroot "$1" su - newcomer -c "export TORCH='$torch' PIP_EXTRA_INDEX_URL='${PIP_EXTRA_INDEX_URL:-}' PIP_CERT=/etc/ssl/certs/ca-certificates.crt; $2"
}

# try NAME ROOT COMMAND: the same, into a log
failed=0
try() {
  local log=$folder/$suite.$1.log start=$SECONDS
  if newcomer "$2" "$3" >"$log" 2>&1; then
    say "$1: passed in $((SECONDS - start)) s; $(tail -n 1 "$log")"
  else
    failed=1
    say "$1: FAILED after $((SECONDS - start)) s; $log:"
    grep -E '^(FAILED|ERROR)|[Ee]rror:' "$log" | tail -n 20 >&2 || tail -n 20 "$log" >&2
  fi
}

full=$folder/$suite plain=$folder/$suite-plain
say "a minimal $suite, with a compiler"
system "$full" python3 python3-venv python3-dev gcc g++ make git ca-certificates
rm -rf "$full/home/newcomer/fairseq_lasformer"
git bundle create --quiet "$full/home/newcomer/clone.bundle" HEAD
newcomer "$full" "git clone --quiet clone.bundle fairseq_lasformer"
for target in ${TARGETS:-demo test}; do try "$target" "$full" "cd fairseq_lasformer && make $target"; done
try wheel "$full" "cd fairseq_lasformer && make wheel"

say "a minimal $suite, with neither compiler nor headers"
system "$plain" python3 python3-venv ca-certificates
home=$plain/home/newcomer
rm -rf "$home/dist" "$home/help" "$home/out" && mkdir "$home/dist" "$home/help"
cp "$full"/home/newcomer/fairseq_lasformer/dist/*.whl "$home/dist/"
git archive HEAD data/models/help_en-de data/demo | tar -x -C "$home/help"
chroot "$plain" chown -R newcomer /home/newcomer
try install "$plain" "python3 -m venv venv && venv/bin/pip install '$torch' && venv/bin/pip install --find-links dist fairseq_lasformer fairseq-fixed"
try translate "$plain" "echo 'Delete the text box.' | venv/bin/lasformer translate help/data/models/help_en-de"
try train "$plain" "PATH=\$PWD/venv/bin:\$PATH; rm -rf raw data model; python help/data/demo/generate.py raw --documents 40 &&
  lasformer prepare data -s en -t de --train raw/train --valid raw/valid --test raw/test --size 500 --limit 256 &&
  lasformer train data model --arch lasformer_tiny --max-update 20 --max-tokens 1024"
exit $failed
