PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check
SDK_TESTS := $(VENV)/sdk-tests
CHATKIT_TESTS := $(VENV)/chatkit-tests

# Set-up has three steps: the package with all drivers, the development tools, and the tests of the
# SDK and of ChatKit. Each runs once, and again when pyproject.toml or constraints.txt changes.
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

fuzz: $(DEV)  ## run the scalable tests with large counts and 50 times as many examples
	@TEST_SCALE=full $(BIN)/python -m pytest -n auto --dist worksteal --timeout 7200 -m scaled $(ARGS)

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

lock:  ## upgrade all pinned versions in constraints.txt
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install uv
	@UV_PYTHON_DOWNLOADS=never $(BIN)/uv pip compile --quiet --universal --python-version 3.10 \
		--extra dev --extra docs --upgrade --no-annotate --no-header --output-file $(VENV)/lock.txt pyproject.toml
	@{ echo '# Written by "make lock": one version of everything, for Python 3.10 to 3.13.'; \
		cat $(VENV)/lock.txt; } > constraints.txt

clean:  ## delete the environment and all caches
	@rm -rf $(VENV) build dist site .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# The back end is installed first and used as it is: a build environment of its own would take
# whatever version is newest on that day.
$(LIGHT): pyproject.toml constraints.txt
	@echo 'Creating $(VENV)'
	@$(PYTHON) -m venv $(VENV)
	@echo 'Installing the package with its drivers, the command line and the browser pages (a minute or two)'
	@$(PIP) install -c constraints.txt hatchling hatch-fancy-pypi-readme editables
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[sqlite,postgresql,psycopg,mysql,cli,web]'
	@touch $@

$(DEV): $(LIGHT)
	@echo 'Installing the development tools'
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

# Only the source distribution of the SDK has its tests. Its src folder is removed, so that they test
# the SDK that is installed.
$(SDK): $(DEV)
	@echo "Fetching the SDK's own tests"
	@rm -rf $(SDK_TESTS) && mkdir -p $(SDK_TESTS)
	@version=$$($(BIN)/python -c 'from importlib.metadata import version; print(version("openai-agents"))') \
		&& $(PIP) download -c constraints.txt --no-deps --no-binary :all: --no-build-isolation \
			--dest $(SDK_TESTS) "openai-agents==$$version"
	@tar -xzf $(SDK_TESTS)/openai_agents-*.tar.gz -C $(SDK_TESTS) --strip-components=1
	@rm -rf $(SDK_TESTS)/src
	@touch $@

# Likewise ChatKit's.
$(CHATKIT): $(DEV)
	@echo "Fetching ChatKit's own tests"
	@rm -rf $(CHATKIT_TESTS) && mkdir -p $(CHATKIT_TESTS)
	@version=$$($(BIN)/python -c 'from importlib.metadata import version; print(version("openai-chatkit"))') \
		&& $(PIP) download --no-deps --no-binary openai-chatkit --dest $(CHATKIT_TESTS) "openai-chatkit==$$version"
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

.PHONY: build release-check

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

$(BENCH)/.installed: $(LIGHT) benchmarks/requirements.txt
	@echo 'Installing the libraries to compare with'
	@$(PYTHON) -m venv $(BENCH)
	@$(BENCH)/bin/python -m pip --quiet --quiet --disable-pip-version-check install \
		-c constraints.txt hatchling hatch-fancy-pypi-readme editables
	@$(BENCH)/bin/python -m pip --quiet --quiet --disable-pip-version-check install \
		--no-build-isolation -r benchmarks/requirements.txt -e .
	@touch $@

# ---- documentation ----

DOCS := $(VENV)/.docs

.PHONY: docs

# Zensical's --strict does not count what mkdocstrings only logs, such as a docstring out of shape. Files
# outside docs/ that pages link to are copied, and the links shortened by one level.
docs: $(DOCS)  ## build the documentation in site/
	@echo 'Building the documentation (a minute)'
	@log=$$(NO_COLOR=1 $(BIN)/zensical build --clean --strict 2>&1) || { echo "$$log"; exit 1; }; \
		! echo "$$log" | grep -E '^(griffe|mkdocstrings|mkdocs_autorefs):'
	@cp -R examples CHANGELOG.md src site/
	@find site -name '*.html' -exec sed -i -E 's,CHANGELOG\.html.plain=1,CHANGELOG.md,;s,href="\.\./((\.\./)*(examples/|src/|CHANGELOG)),href="\1,g' {} +
	@$(BIN)/python -m pytest -q -n0 tests/reference
	@echo 'The documentation is in site/. Search needs a web server, so read it with:'
	@echo '$(BIN)/python -m http.server --bind 127.0.0.1 --directory site 8000'
	@echo 'and open http://127.0.0.1:8000'

$(DOCS): $(DEV)
	@echo 'Installing what builds the documentation'
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[docs]'
	@touch $@

# ---- hard faults ----

.PHONY: stress

stress: $(DEV)  ## kill servers and connections under load and count losses; ARGS="galera" selects
	@PYTHONPATH=tests $(BIN)/python -W 'ignore:XDG_RUNTIME_DIR' -m stress $(ARGS)

# ---- the contribution to the SDK ----

.PHONY: upstream

upstream: $(DEV)  ## apply contrib/upstream to the newest SDK and run its checks and tests
	@$(BIN)/python -W 'ignore:XDG_RUNTIME_DIR' contrib/upstream/check.py
