# Every target works on a fresh machine with Python 3.11 or newer: it makes .venv from requirements.lock first.
PYTHON ?= python3
PY := .venv/bin/python
# Three processes, or as many as PROCESSES says, each a file at a time, the longest first (tests/conftest.py): many mostly wait.
PROCESSES ?= 3
# A test that takes ten minutes hangs: its process ends with what it was at, and another goes on. By a thread, for tests
# look at signals.
PYTEST := $(PY) -m pytest -n $(PROCESSES) --no-loadscope-reorder --timeout=600 --timeout-method=thread \
  --max-worker-restart=5
.DEFAULT_GOAL := help
# Compiled modules are kept, as Python does unless it is told not to: every process of the tests would compile ddppo
# anew (.4 s of a core), every process of pytest all tests (16 s).
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help train check test test-all collected test-jax test-chat test-aws test-aws-cli test-openenv beside package bench-check docs lint format slurm-up slurm-down clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

.venv/.installed: requirements.lock pyproject.toml hatch_build.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ddppo needs Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	@$(PY) -m pip --version >/dev/null 2>&1 || { rm -rf .venv; \
	  echo "$(PYTHON) makes environments without pip: apt-get install python3-venv, or name another: make PYTHON=python3.12"; exit 1; }
	@echo "installing the packages of requirements.lock into .venv, with torch: a minute or two"
	.venv/bin/pip install --quiet --disable-pip-version-check -r requirements.lock
	.venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

train: .venv/.installed  ## train CartPole on 4 workers, evaluate it, print where everything is
	$(PY) -m ddppo.train env=cartpole dist.world_size=4 eval.every_steps=20000 eval.episodes=10 target_return=475

check: .venv/.installed  ## style, types and the tests nearest to what changed since HEAD (or SINCE=main): under a minute
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet .
	$(PY) -m mypy
	@files="$$($(PY) tests/touched.py $(SINCE))"; if [ -n "$$files" ]; then $(PYTEST) -q -x -m "not slow" $$files; fi

test: .venv/.installed  ## run the quick tests, without those that take longest: minutes
	$(PYTEST) -m "not slow"

test-all: .venv/.installed  ## run every test, as CI does: also SLURM sweeps, hosts, learning, what is killed, most ranks, sums to the bit
	$(PYTEST) --durations=40

collected: .venv/.installed  # tests compiled once for all processes, each of which would take 18 s for it
	@mkdir -p build
	$(PY) -m pytest --collect-only -n 0 -qq > build/collected.txt || { cat build/collected.txt; exit 1; }

test-jax: .venv/.installed  ## try the adapters of simulators in JAX, with gymnax in an environment of its own (650 MB)
	$(PYTHON) -m venv build/jax
	build/jax/bin/pip install --quiet --disable-pip-version-check --no-deps -r tests/device/jax.lock
	PYTHONPATH="$$($(PY) -c "import sysconfig; print(sysconfig.get_path('purelib'))")" \
	  build/jax/bin/python -m pytest -n 0 tests/device/test_jax_simulators.py

# What tests need beside .venv, each in a folder of its own, installed again when this file changes. The tests look for it
# there: make test-all runs them too once `make beside` was run, as in .ci/run; else it skips them.
BESIDE := build/trl build/moto_server build/openenv build/awscli
INSTALL := pip install --quiet --disable-pip-version-check

beside: $(BESIDE:=/.installed)

build/trl/.installed: Makefile | .venv/.installed
	.venv/bin/$(INSTALL) --no-deps --upgrade --target build/trl trl==1.16.0
	touch $@

# Beside .venv, because moto[server] wants an antlr4 that omegaconf cannot use.
build/moto_server/.installed: Makefile | .venv/.installed
	.venv/bin/$(INSTALL) --no-deps --upgrade --target build/moto_server \
	  flask==3.1.2 flask-cors==6.0.1 itsdangerous==2.2.0 blinker==1.9.0
	touch $@

build/openenv/.installed: Makefile tests/serve/openenv.txt
	$(PYTHON) -m venv build/openenv
	build/openenv/bin/$(INSTALL) --no-deps openenv==0.10.0
	build/openenv/bin/$(INSTALL) -r tests/serve/openenv.txt
	touch $@

build/awscli/.installed: Makefile | .venv/.installed
	.venv/bin/$(INSTALL) --no-deps --upgrade --target build/awscli \
	  awscli==1.46.3 docutils==0.19 rsa==4.7.2 pyasn1==0.6.5 colorama==0.4.6
	touch $@

test-chat: .venv/.installed build/trl/.installed  ## try the chat templates of real models, from the wheel of trl without what it needs (1 MB)
	$(PY) -m pytest -n 0 tests/domains/text/test_chat_templates.py

test-aws: .venv/.installed build/moto_server/.installed  ## try tasks of the cloud at a server of moto, with what it needs beside .venv (4 small packages)
	$(PY) -m pytest -n 0 tests/domains/cloud/test_cloud_endpoint.py

test-openenv: .venv/.installed build/openenv/.installed  ## try OpenEnv both ways, with its package in an environment of its own (200 MB, 3 minutes)
	$(PY) -m pytest -n 0 tests/serve/test_openenv_package.py

test-aws-cli: .venv/.installed build/awscli/.installed  ## compare the cloud's command line with the AWS CLI itself (155 MB, in a folder of its own)
	$(PY) -m pytest -n 0 -m "not slow" tests/domains/cloud/test_cloud_true_cli.py

package: .venv/.installed  ## build the wheel, and try it in an environment of its own, away from here
	$(PY) -m pytest tests/package

bench-check: .venv/.installed  ## fail if one worker is 30 % slower than it was, relative to this machine
	$(PY) -m ddppo.bench compare=experiments/speed/floor.json tolerance=0.3 workloads=W1 world_sizes=1 rounds=5 seconds=2

docs: .venv/.installed  ## make the pages a site, build/site, and fail at a link to nowhere
	rm -rf build/pages && mkdir -p build/pages
	git ls-files -z '*.md' LICENSE CITATION.cff docs ddppo conf experiments tests | xargs -0 cp --parents -t build/pages
	$(PY) docs/reference.py build/pages/docs
	.venv/bin/properdocs build --strict --quiet -f docs/site.yml

lint: .venv/.installed  ## check style and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: .venv/.installed  ## rewrite the code in the house style
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

slurm-up: .venv/.installed  ## start a SLURM of 8 nodes on this machine to try jobs on
	$(PY) -m tests.slurm.local_cluster up

slurm-down: .venv/.installed  ## end it and its jobs
	$(PY) -m tests.slurm.local_cluster down

clean:  ## remove the virtual environment and caches
	rm -rf build .venv .pytest_cache .ruff_cache .mypy_cache .hypothesis
