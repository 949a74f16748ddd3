PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check
SDK_TESTS := $(VENV)/sdk-tests
CHATKIT_TESTS := $(VENV)/chatkit-tests

# Set-up has three steps: the package with all drivers, all other tools, and the tests of the SDK and of
# ChatKit. Each runs once, and again when pyproject.toml or constraints.txt changes.
LIGHT := $(VENV)/.light
DEV := $(VENV)/.dev
SDK := $(SDK_TESTS)/.unpacked
CHATKIT := $(CHATKIT_TESTS)/.unpacked

# Without compiled files, each worker and each program that the tests start compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test fuzz check format lint typecheck lock clean

help:  ## show this help
	@sed -n 's/^\([a-z-]*\):[^#]*## */\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r target text; do \
		printf '%-14s %s\n' "$$target" "$$text"; done

demo: $(LIGHT)  ## run examples/quickstart.py
	@echo 'Running examples/quickstart.py'
	@$(BIN)/python examples/quickstart.py
	@echo
	@echo 'To list sessions with the command line:'
	@printf '  %s\n' 'source $(BIN)/activate' \
		$(if $(AGENT_SESSIONS_URL),'export AGENT_SESSIONS_URL=...  # the same URL','export AGENT_SESSIONS_URL=sqlite:///demo.db' 'make demo') \
		'agent-sessions list'
	@echo 'To see generated sessions in a browser:'
	@printf '  %s\n' 'agent-sessions web --demo'

test: $(SDK) $(CHATKIT)  ## run the tests; ARGS="-m quick" runs the fast ones, on SQLite
	@$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS); code=$$?; \
		echo 'CPU time of the shell, then of the tests, each in user and system mode:'; \
		times; exit $$code

# Most of its tests wait for processes that they start and kill, so there are two workers per core.
fuzz: $(SDK)  ## run the scalable tests with large counts and 50 times as many examples
	@TEST_SCALE=full $(BIN)/python -m pytest -n $$((2 * $$(getconf _NPROCESSORS_ONLN))) \
		--dist worksteal --timeout 7200 -m scaled $(ARGS)

check: lint typecheck test  ## run lint, typecheck and test

format: $(DEV)  ## format the code and sort imports
	@$(BIN)/ruff check --quiet --select I --fix .
	@$(BIN)/ruff format .

lint: $(DEV)  ## check formatting and lint rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

typecheck: $(DEV)  ## check types with mypy and pyright
	@$(BIN)/mypy
	@$(BIN)/pyright
	@report=$$(PATH="$(CURDIR)/$(BIN):$$PATH" pyright --verifytypes agents_session_metadata \
		--ignoreexternal) || { echo "$$report"; exit 1; }

# constraints.txt has two parts, so that `make demo` need not install everything. pip checks hashes only if
# every requirement has one; this package itself is therefore installed afterwards, without dependencies.
# The back end is installed like the rest: a build environment of its own would take the newest one.
DEMO := sqlite postgresql psycopg mysql cli web
BACK_END := hatchling hatch-fancy-pypi-readme editables
REST := \# The other targets install these, too.
COMPILE := UV_PYTHON_DOWNLOADS=never $(BIN)/uv pip compile --quiet --universal --python-version 3.10 \
	--no-annotate --no-header
PART := awk -F == 'NR == FNR { demo[$$1]; next } /^[a-z]/ { kept = ($$1 in demo) == wanted } kept' \
	$(VENV)/demo.txt

lock:  ## upgrade all pinned versions in constraints.txt, with their hashes
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install uv
	@$(COMPILE) --extra dev --extra docs --upgrade --generate-hashes -o $(VENV)/lock.txt pyproject.toml
	@printf '%s\n' $(BACK_END) | $(COMPILE) $(DEMO:%=--extra %) -c $(VENV)/lock.txt -o $(VENV)/demo.txt \
		pyproject.toml -
	@{ echo '# Written by "make lock": one version of everything, for Python 3.10 to 3.13.'; \
		echo '# "make demo" installs these packages.'; $(PART) wanted=1 $(VENV)/lock.txt; \
		echo '$(REST)'; $(PART) wanted=0 $(VENV)/lock.txt; } > constraints.txt

clean:  ## delete the environment and all caches
	@rm -rf $(VENV) build dist site .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(LIGHT): pyproject.toml constraints.txt
	@echo 'Creating $(VENV)'
	@$(PYTHON) -m venv $(VENV)
	@echo 'Installing the package with its drivers, the command line and the browser pages (a minute or two)'
	@sed '/^$(REST)/,$$d' constraints.txt > $(VENV)/demo.txt
	@$(PIP) install --require-hashes -r $(VENV)/demo.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(DEV): $(LIGHT)
	@echo 'Installing the development tools'
	@$(PIP) install --require-hashes -r constraints.txt
	@touch $@

# The lines of constraints.txt about one package.
LOCKED = sed -n '/^$(1)==/,/[^\\]$$/p' constraints.txt

# Only the source distribution of the SDK has its tests. Its src folder is removed, so that they test
# the SDK that is installed.
$(SDK): $(DEV)
	@echo "Fetching the SDK's own tests"
	@rm -rf $(SDK_TESTS) && mkdir -p $(SDK_TESTS)
	@$(call LOCKED,openai-agents) > $(SDK_TESTS)/version.txt
	@$(PIP) download --require-hashes --no-deps --no-binary :all: --no-build-isolation \
		--dest $(SDK_TESTS) -r $(SDK_TESTS)/version.txt
	@tar -xzf $(SDK_TESTS)/openai_agents-*.tar.gz -C $(SDK_TESTS) --strip-components=1
	@rm -rf $(SDK_TESTS)/src
	@touch $@

# Likewise ChatKit's.
$(CHATKIT): $(DEV)
	@echo "Fetching ChatKit's own tests"
	@rm -rf $(CHATKIT_TESTS) && mkdir -p $(CHATKIT_TESTS)
	@$(call LOCKED,openai-chatkit) > $(CHATKIT_TESTS)/version.txt
	@$(PIP) download --require-hashes --no-deps --no-binary openai-chatkit \
		--dest $(CHATKIT_TESTS) -r $(CHATKIT_TESTS)/version.txt
	@tar -xzf $(CHATKIT_TESTS)/openai_chatkit-*.tar.gz -C $(CHATKIT_TESTS) --strip-components=1
	@rm -rf $(CHATKIT_TESTS)/chatkit
	@touch $@

# ---- compatibility ----

.PHONY: compat test-runs-oldest

# Makes all interpreters of pyenv available, if it is installed.
WITH_PYTHONS := PYENV_VERSION="$$(pyenv versions --bare 2>/dev/null | paste -sd:)"

compat: $(DEV)  ## run the tests on other versions of Python, SQLAlchemy and the SDK
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(WITH_PYTHONS) nox $(ARGS)

test-runs-oldest: $(DEV)  ## run the tests of runs on Python 3.10, whose asyncio differs
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(WITH_PYTHONS) nox --session runs \
		$(if $(filter true,$(CI)),--error-on-missing-interpreters) $(ARGS)

# ---- release ----

.PHONY: build release-check dependencies

dependencies: $(DEV)  ## write docs/dependencies.md: the packages that are installed, and their licenses
	@$(BIN)/python docs/dependencies.py > docs/dependencies.md

build: $(DEV)  ## build the wheel and the source distribution in dist/
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist .

release-check: build  ## build, then install and try each distribution in empty environments
	@$(WITH_PYTHONS) $(BIN)/python -m pytest tests/release $(ARGS)

# ---- benchmarks ----

# The libraries to compare with want other versions of what constraints.txt pins.
BENCH := $(VENV)/bench

.PHONY: bench bench-small

bench: $(BENCH)/.installed  ## compare with the plain SDK, a plain table and other libraries
	@$(BENCH)/bin/python -m benchmarks $(ARGS)

bench-small: $(DEV)  ## run one minute of benchmarks
	@$(BIN)/python -m benchmarks --small $(ARGS)

$(BENCH)/.installed: $(DEV) benchmarks/requirements.txt
	@echo 'Installing the libraries to compare with'
	@$(PYTHON) -m venv $(BENCH)
	@$(BIN)/uv pip install --quiet --python $(BENCH) --build-constraint constraints.txt \
		-r benchmarks/requirements.txt -e .
	@touch $@

# ---- documentation ----

.PHONY: docs

# Zensical's --strict does not count what mkdocstrings only logs, such as a docstring out of shape. Files
# outside docs/ that pages link to are copied, and the links shortened by one level.
docs: $(DEV)  ## build the documentation in site/
	@echo 'Building the documentation (a minute)'
	@log=$$(NO_COLOR=1 $(BIN)/zensical build --clean --strict 2>&1) || { echo "$$log"; exit 1; }; \
		! echo "$$log" | grep -E '^(griffe|mkdocstrings|mkdocs_autorefs):'
	@cp -R examples CHANGELOG.md src site/
	@find site -name '*.html' -exec sed -i -E 's,CHANGELOG\.html.plain=1,CHANGELOG.md,;s,href="\.\./((\.\./)*(examples/|src/|CHANGELOG)),href="\1,g' {} +
	@$(BIN)/python -m pytest -q -n0 tests/reference
	@echo 'The documentation is in site/. Search needs a web server, so read it with:'
	@echo '$(BIN)/python -m http.server --bind 127.0.0.1 --directory site 8000'
	@echo 'and open http://127.0.0.1:8000'

# ---- hard faults ----

.PHONY: stress

stress: $(DEV)  ## kill servers and connections under load and count losses; ARGS="galera" selects
	@PYTHONPATH=tests $(BIN)/python -W 'ignore:XDG_RUNTIME_DIR' -m stress $(ARGS)

# ---- the contribution to the SDK ----

.PHONY: upstream

upstream: $(DEV)  ## apply contrib/upstream to the newest SDK and run its checks and tests
	@$(BIN)/python -W 'ignore:XDG_RUNTIME_DIR' contrib/upstream/check.py
