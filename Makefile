# The same commands as in README.md and .ci/run. Needs Python 3.11 or newer and make, nothing else; npm for the
# CopilotKit example.
PORT ?= 8000
VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := $(VENV)/bin
DEMO := AGUI_DEBUG=1 AGUI_SQLITE=$${AGUI_SQLITE-wal}

FRONTEND := project/frontend
BUNDLE := project/static/copilotkit_demo/main.js

.PHONY: demo frontend test test-lowest lint bench clean

demo: $(VENV)/.installed  ## the demo site on http://127.0.0.1:$(PORT)
	@if command -v npm >/dev/null; then \
		$(MAKE) --no-print-directory frontend || echo "The CopilotKit example was not built: make frontend"; \
	else echo "No npm: without it there is no CopilotKit example. Install Node.js, then: make frontend"; fi
	$(DEMO) $(BIN)/python manage.py migrate --verbosity 0
	$(DEMO) $(BIN)/python manage.py agui_demo_data
	@echo "Chat: http://127.0.0.1:$(PORT)/   Admin: http://127.0.0.1:$(PORT)/admin/ (admin, admin)"
	@test ! -f $(BUNDLE) || echo "CopilotKit: http://127.0.0.1:$(PORT)/copilotkit-demo/"
	exec env $(DEMO) $(BIN)/python -m daphne -b 127.0.0.1 -p $(PORT) project.asgi:application

frontend: $(BUNDLE)  ## the CopilotKit example at /copilotkit-demo/; the first time npm fetches 500 MB

$(BUNDLE): $(FRONTEND)/node_modules/.package-lock.json $(FRONTEND)/build.mjs $(FRONTEND)/bundle.mjs $(shell find $(FRONTEND)/src -type f)
	npm run --prefix $(FRONTEND) --silent build

$(FRONTEND)/node_modules/.package-lock.json: $(FRONTEND)/package-lock.json
	npm ci --prefix $(FRONTEND) --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@

test: $(VENV)/.installed  ## the whole suite; what is not installed is skipped (AGUI_TEST_REQUIRE=all: fails)
	$(BIN)/python -m pytest $(ARGS)

# CI's second run has these versions, too. Servers of others (test_remote_peers) are tried in their newest version only.
test-lowest: $(VENV)/.installed  ## the frameworks' tests with the lowest versions that pyproject.toml lets in
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	$(BIN)/python .ci/lowest > .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install --disable-pip-version-check -q -r requirements.txt -c .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pytest tests/frameworks tests/agents/test_remote_servers.py tests/test_client.py \
		--ignore tests/frameworks/test_remote_peers.py $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	AGUI_DEBUG=1 $(BIN)/python manage.py makemigrations --check --dry-run
	AGUI_SECRET_KEY=$$($(BIN)/python -c 'import secrets; print(secrets.token_urlsafe(60))') \
		AGUI_ALLOWED_HOSTS=example.org $(BIN)/python manage.py check --deploy --fail-level WARNING

bench: $(VENV)/.installed  ## docs/performance.md says how to read it
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache htmlcov

$(VENV)/.installed: requirements.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q -r requirements.txt
	touch $@
