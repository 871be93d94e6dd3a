# Shared by the scripts: find the commands, and print the comment at the head of a script as its usage.
bin=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv/bin
lasformer=$bin/lasformer
[ -x "$lasformer" ] || { lasformer=lasformer bin=; }

usage() { # print the comment at the head of a script
  sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "$1" >&2
  exit 1
}
