# Shared by the recipes: where the commands are, and how a recipe prints its own head as its usage.
bin=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv/bin
lasformer=$bin/lasformer
[ -x "$lasformer" ] || { lasformer=lasformer bin=; }

usage() { # the comment at the head of a recipe
  sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "$1" >&2
  exit 1
}
