#!/usr/bin/env bash
# Changes the kernel and what counts, one place at a time, and lists the changes that no test finds: `make mutants`.
#
#   scripts/mutants.sh [FILE...]     only these of the files in mutants.toml; all take about an hour
#
# docs/mutants.md explains those that are known to survive.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$PWD/.venv/bin/python
tool=.venv-mutants
[ -x "$tool/bin/cosmic-ray" ] || {
  echo "mutants: installing cosmic-ray into $tool"
  "$python" -m venv "$tool"
  "$tool/bin/pip" --quiet install cosmic-ray==8.7.0
}
tool=$PWD/$tool/bin

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -cf - -T - | tar -xf - -C "$copy"
sed -e "s#@HERE@#$copy#" -e "s#@PYTHON@#$python#" scripts/mutants.toml >"$copy/mutants.toml"
cd "$copy"
for file in $(sed -n 's/^    "\(.*\)",$/\1/p' mutants.toml); do
  case " $* " in
    "  " | *" $file "*) ;;
    *) sed -i "\#^    \"$file\",\$#d" mutants.toml ;;
  esac
done

"$tool/cosmic-ray" --verbosity=CRITICAL baseline mutants.toml || {
  echo "mutants: the tests fail without any change: run make test first" >&2
  exit 1
}
"$tool/cosmic-ray" init mutants.toml session.sqlite
"$tool/cr-filter-operators" session.sqlite mutants.toml >/dev/null
"$tool/cosmic-ray" exec mutants.toml session.sqlite &
running=$!
while kill -0 "$running" 2>/dev/null; do
  sleep 10
  "$tool/cr-report" session.sqlite 2>/dev/null | tail -3 | tr '\n' ' ' || true
  echo
done
wait "$running"
"$tool/cr-report" --surviving-only --show-diff session.sqlite
