#!/usr/bin/env bash
# Changes the kernel and what counts, one place at a time, and lists the changes that no test finds: `make mutants`.
#
#   scripts/mutants.sh [FILE...]     only these of the files below; all take an hour on an idle machine
#
# KEEP=DIR leaves cosmic-ray's sessions there. docs/mutants.md explains what is known to survive.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The rest of coordlog/kernel, inputs.py and outputs.py, declares what goes in and out and decides nothing.
files=(
  coordlog/kernel/requests.py
  coordlog/kernel/attempts.py
  coordlog/kernel/events.py
  coordlog/kernel/from_attempts.py
  coordlog/kernel/refusals.py
  coordlog/kernel/builder.py
  coordlog/kernel/checkpoints.py
  coordlog/kernel/failover.py
  coordlog/kernel/job_end.py
  projections/job/skips.py
  coordlog/kernel/restart_policy.py
  coordlog/kernel/commits.py
  coordlog/kernel/step.py
  projections/job/invariants.py
  schemas/validity.py
)
# What finds most comes first: the first failure ends a run.
kernel_tests=(
  tests/unit/kernel/test_{due,events,restart_policy,gateways}.py
  tests/unit/flink/test_{flink_holder,flink_races}.py
  tests/unit/checkpoints/test_completion.py
  tests/unit/failover/test_global_failover.py
  tests/unit/failover/test_{restore,local_failover}.py
  tests/unit/checkpoints/test_{checkpoints,checkpoint_metadata}.py
  tests/unit/kernel/test_{turns,hosting,intents,requests,turn_limits}.py
  tests/unit/discovery/test_splits.py
  tests/unit/sinks/test_commits.py
  tests/unit/flink/test_{flink_resets,flink_checkpoints,flink_job}.py
  tests/unit/failover/test_{parallelism,non_restored_state}.py
  tests/unit/coordinators/test_event_sourced.py
  tests/unit/checkpoints/test_{missing_parts,savepoints}.py
  tests/unit/kernel/test_{two_drivers,skips}.py
  tests/unit/failover/test_{final_failures,opened_again}.py
  tests/unit/flink/test_{flink_sources,flink_sources_checkpoints}.py
)
invariants_tests=(
  tests/unit/kernel/test_invariants.py
  tests/unit/inspection/test_moments.py
)
counting_tests=(
  tests/unit/log/test_{counting,protocol,appender}.py
  tests/property/test_counting.py
  tests/unit/kernel/test_turns.py
  tests/unit/failover/test_restore.py
)

python=$PWD/.venv/bin/python
tool=$PWD/.venv-mutants/bin
[ -x "$tool/cosmic-ray" ] || {
  echo "mutants: installing cosmic-ray into .venv-mutants"
  "$python" -m venv .venv-mutants
  "$tool/pip" --quiet install cosmic-ray==8.7.0
}

if [ -n "${KEEP:-}" ]; then
  mkdir -p "$KEEP"
  work=$(cd "$KEEP" && pwd)
else
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi

one_file() { # FILE: its changes, in a copy of the work tree of its own
  local file=$1 here tests
  here=$work/$(tr / . <<<"${file%.py}")
  case $file in
    schemas/*) tests="${counting_tests[*]}" ;;
    projections/job/invariants.py) tests="${invariants_tests[*]}" ;;
    *) tests="${kernel_tests[*]}" ;;
  esac
  rm -rf "$here"
  mkdir "$here"
  git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -cf - -T - | tar -xf - -C "$here"
  sed -e "s#@HERE@#$here#" -e "s#@PYTHON@#$python#" -e "s#@FILE@#$file#" -e "s#@TESTS@#$tests#" \
    scripts/mutants.toml >"$here/mutants.toml"
  cd "$here"
  # Compiles everything, which each run would do again: cosmic-ray keeps them from writing compiled files.
  # shellcheck disable=SC2086  # a list of files
  PYTHONPATH=$here env -u PYTHONDONTWRITEBYTECODE "$python" -m pytest -q -x -p no:cacheprovider -m "not slow" $tests >baseline || {
    tail -n 40 baseline >&2
    echo "mutants: the tests fail without any change: run make test first" >&2
    exit 1
  }
  find . -path "*__pycache__/$(basename "$file" .py).*" -delete
  "$tool/cosmic-ray" init mutants.toml session.sqlite
  "$tool/cr-filter-operators" session.sqlite mutants.toml >/dev/null
  "$tool/python" scripts/mutants_report.py "$file" session.sqlite >/dev/stderr
  "$tool/cosmic-ray" exec mutants.toml session.sqlite
  "$tool/python" scripts/mutants_report.py "$file" session.sqlite | tee report.txt
}

[ $# -gt 0 ] || set -- "${files[@]}"
for file in "$@"; do
  case " ${files[*]} " in
    *" $file "*) (one_file "$file") ;;
    *)
      echo "mutants: $file is none of: ${files[*]}" >&2
      exit 2
      ;;
  esac
done
