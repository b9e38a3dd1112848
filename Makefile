PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
BACKENDS := tensorflow jax torch

.PHONY: install demo test lint bench

install: $(VENV)/.installed

$(VENV)/.installed: requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

demo: install
	$(BIN)/python examples/language_model.py

test: install
	@for backend in $(BACKENDS); do \
		echo "== $$backend"; \
		KERAS_BACKEND=$$backend $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup || exit 1; \
	done

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: install
	@for backend in $(BACKENDS); do \
		echo "== $$backend"; \
		KERAS_BACKEND=$$backend $(BIN)/python benchmarks/layers.py || exit 1; \
	done
	$(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/decoding.py
