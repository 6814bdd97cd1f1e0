# `make` lists what there is. Everything works from a fresh checkout: what needs setting up depends on setup.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PY := .venv/bin/python
SPARK43 := .venv-spark43/bin/python
PYTEST := $(PY) -m pytest
# what the type checkers read; links in coordlog/ lead them to the other package folders
TYPED := coordlog tests $(sort $(dir $(wildcard benchmarks/*.py examples/*.py)))
# more arguments for pytest: make test ARGS="-k split -x"
ARGS ?=
# what is tried on them: the log's whole contract, and jobs whose drivers and attempts are killed
ON_OLD_BROKERS := contract/test_log_contract.py integration/log/test_old_broker.py integration/log/test_kafka_log.py \
        integration/restore/test_adopting.py integration/restore/test_prune.py integration/restore/test_export_and_replay.py
# the lowest kafka-python of pyproject.toml, and its place beside the packages of .venv
OLD_CLIENT = $(shell sed -n 's/^    "kafka-python>=\([0-9.]*\),.*/\1/p' pyproject.toml)
OLD_CLIENT_PATH = $(CURDIR)/.venv/kafka-python-$(OLD_CLIENT)
# how many tests run at a time, each of the processes with a broker and a Spark session of its own (1.5 GB)
WORKERS ?= 2

# else each process of a test compiles all modules anew
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-spark43 demo test test-faults test-matrix test-cluster test-docker test-old-broker test-old-client test-rest test-spark43 test-all lint format \
        types contracts contract reference \
        check chaos coverage exhaustive fencing fuzz bench bench-ingest bench-memory mutants simulate clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## everything that is needed, into .venv and a cache of jars; the second time it does nothing
	@scripts/setup.sh

demo: setup ## the whole thing at work, in a few minutes
	@$(PY) examples/demo.py

test: WORKERS = 3 # brokers and JVMs are waited for
test: setup ## tier 1: units, contracts, properties, real brokers, each way through Spark once
	@$(PYTEST) --tier test -n $(WORKERS) --dist loadfile $(ARGS)

test-faults: setup ## tier 2: kills, chaos, fencing, a cluster, hostile input
	@$(PYTEST) --tier faults -n $(WORKERS) --dist loadfile $(ARGS)

test-matrix: test-rest test-spark43 test-old-broker test-old-client ## tier 3: these four, one after the other
.NOTPARALLEL: test-matrix

test-rest: setup ## of tier 3: all else on Spark, S3, databases, tables, Docker, on the versions of .venv
	@$(PYTEST) --tier matrix -n $(WORKERS) --dist loadfile $(ARGS)

test-docker: setup ## the tests that need a Docker engine, with the engine that is there; no skips
	@$(PYTEST) -m docker --no-skips $(ARGS)

test-cluster: setup ## a job by spark-submit on a standalone cluster, where everything is killed once; two minutes
	@$(PYTEST) tests/spark/stages/test_cluster.py tests/spark/stages/test_stage_retry.py $(ARGS)

setup-spark43:
	@scripts/setup.sh --venv .venv-spark43 --pyspark 4.3.0

test-spark43: setup-spark43 ## the tests of the Spark side on Spark 4.3.0, in an environment of its own
	@$(SPARK43) -m pytest -m "spark and not kafka_source and not docker and not any_spark" \
		-n $(WORKERS) --dist worksteal $(ARGS)

test-old-broker: setup ## the log and jobs on Kafka 3.0.0, the oldest that works; 2.8.0 is refused; fetches 108 MB once
	@for one in 2.7.2 2.8.0 2.8.0-kraft; do \
		$(PYTEST) --broker $$one tests/integration/log/test_old_broker.py -k broker_of_the_run || exit 1; done
	@$(PYTEST) --broker 3.0.0-kraft -m "kafka and not docker" -n $(WORKERS) --dist loadfile \
		$(addprefix tests/,$(ON_OLD_BROKERS)) $(ARGS)

test-old-client: setup ## the log with the lowest kafka-python that pyproject.toml allows
	@[ -d $(OLD_CLIENT_PATH) ] || $(PY) -m pip install -q --no-deps --target $(OLD_CLIENT_PATH) kafka-python==$(OLD_CLIENT)
	@PYTHONPATH=$(OLD_CLIENT_PATH) $(PY) -c 'import kafka; assert kafka.__version__ == "$(OLD_CLIENT)", kafka.__version__'
	@PYTHONPATH=$(OLD_CLIENT_PATH) $(PYTEST) -m "not docker" -n $(WORKERS) --dist loadfile \
		tests/integration/log/test_kafka_client_faults.py \
		tests/contract/test_log_contract.py tests/integration/log/test_kafka_log.py $(ARGS)

test-all: setup ## every test of all tiers; a skip is a failure (needs a Docker engine)
	@$(PYTEST) --no-skips $(ARGS)

lint: setup ## ruff: rules and format
	@$(PY) -m ruff check --output-format concise .
	@$(PY) -m ruff format --check .

format: setup ## ruff: mend what it can
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

types: setup ## mypy and pyright, both strict; and mypy of the Python in the pages
	@$(PY) -m mypy $(TYPED)
	@$(PY) -m pyright
	@$(PYTEST) -q tests/unit/project/test_page_types.py

contracts: setup ## who may import whom
	@.venv/bin/lint-imports

reference: setup ## the pages of docs/reference and the tables of options, from the code
	@$(PY) scripts/make_reference.py
	@$(PY) tests/option_table.py --write

contract: setup ## which test shows which clause of docs/contract.md, in which tier, and whether one has none
	@$(PY) tests/contract_table.py $(ARGS)

check: lint types contracts contract test ## lint, types, contracts and the tests of tier 1

coverage: setup ## which lines and branches the tests reach
	@$(PY) -m coverage run -m pytest $(ARGS)
	@$(PY) -m coverage report --skip-covered

exhaustive: setup ## small worlds searched whole, larger ones than the tests do; docs/exhaustive.md has their sizes
	@cd tests && ../$(PY) -m exhaustive.whole $(ARGS)

fuzz: setup ## hostile bytes in the topic and on the endpoint, 100,000 of them; ARGS="--count 1000 --seed 7"
	@cd tests && ../$(PY) -m hostile $(ARGS)

bench: setup ## the benchmarks, with the numbers that the docs quote
	@$(PY) -m benchmarks $(ARGS)

bench-ingest: setup ## ingestion beside Spark's own file stream, same data, same cores; ten minutes
	@$(PY) -m benchmarks.ingest $(ARGS)

bench-memory: setup ## the memory of a job that reads 100,000 small files; half an hour
	@$(PY) -m benchmarks.memory $(ARGS)

mutants: setup ## changes the kernel and what counts, place by place, and lists the changes that no test finds; an hour
	@scripts/mutants.sh $(ARGS)

chaos: setup ## jobs on real brokers that are killed, cut off, filled up; ARGS="--minutes 30"; half an hour
	@cd tests && ../$(PY) -m chaos.rounds $(ARGS)

fencing: setup ## two drivers on a real broker, one stands still at a step, the other takes over; ARGS="--rounds 200"
	@cd tests && ../$(PY) -m chaos.fencing $(ARGS)

simulate: setup ## random schedules of a whole job, in memory; ARGS="--seconds 600" for longer, "--seed N" for one again
	@cd tests && ../$(PY) -m simulation $(ARGS)

clean: ## removes what make made; the cache of jars stays
	@rm -rf .venv .venv-spark43 .venv-mutants .setup* build dist *.egg-info .coverage htmlcov \
	        .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
