# One command each: demo, test, check, bench. Each makes the virtual environment that it needs, once.
# GNU make 3.81 is enough. `make help` lists the targets and the settings.

VENV  ?= .venv
NOENV ?=
ARGS  ?=
JOBS  ?= 2

.DEFAULT_GOAL := help
.PHONY: demo test check format notebooks bench clean help

# ---- which Python -----------------------------------------------------------------------------------------------
# The newest of 3.14 .. 3.11 that really runs and can make an environment. A version manager's shim may be on the
# PATH and still refuse, so every candidate is tried. PYTHON=... on the command line names one and ends the search.
SUITABLE := import sys, sysconfig, venv, ensurepip; \
  sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 14)) or bool(sysconfig.get_config_var("Py_GIL_DISABLED")))

define FIND_PYTHON
if [ -n "$(PYTHON)" ]; then candidates="$(PYTHON)"; else candidates=""; \
  for v in 3.14 3.13 3.12 3.11; do \
    candidates="$$candidates python$$v"; \
    for found in "$$HOME"/.pyenv/versions/$$v*/bin/python3 "$$HOME"/.local/share/uv/python/cpython-$$v*/bin/python3 \
                 /opt/homebrew/bin/python$$v /usr/local/bin/python$$v; do \
      if [ -x "$$found" ]; then candidates="$$candidates $$found"; fi; \
    done; \
  done; candidates="$$candidates python3 python"; fi; \
for python in $$candidates; do \
  if "$$python" -c '$(SUITABLE)' >/dev/null 2>&1; then break; fi; python=""; \
done; \
if [ -z "$$python" ]; then \
  echo "No suitable Python was found (tried: $$candidates)." >&2; \
  echo "Needed: Python 3.11 to 3.14 with the modules venv and ensurepip." >&2; \
  echo "Remedy: install one ('apt-get install python3 python3-venv', 'brew install python@3.13', or python.org)," >&2; \
  echo "        or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; \
  exit 1; \
fi
endef

# ---- what to install --------------------------------------------------------------------------------------------
# The tests compile CUDA code, which needs NVIDIA's wheels but no GPU; they exist for Linux on two processors. The
# demo needs them only where a driver is found: they take over a gigabyte.
PLATFORM   := $(shell uname -s)-$(shell uname -m)
HAS_WHEELS := $(filter Linux-x86_64 Linux-aarch64,$(PLATFORM))
HAS_DRIVER := $(shell { ldconfig -p; /sbin/ldconfig -p; \
  ls /usr/lib/wsl/lib /usr/lib64 /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu /usr/local/nvidia/lib64; \
  } 2>/dev/null | grep -m 1 -o 'libcuda\.so\.1')

comma       := ,
TEST_EXTRAS := test,demo$(if $(HAS_WHEELS),$(comma)cuda)
DEMO_EXTRAS := demo$(if $(and $(HAS_WHEELS),$(HAS_DRIVER)),$(comma)cuda)

ifeq ($(NOENV),)
  RUN        := $(VENV)/bin/python
  TEST_READY := $(VENV)/.ready-$(TEST_EXTRAS)
  DEMO_READY := $(or $(wildcard $(TEST_READY)),$(VENV)/.ready-$(DEMO_EXTRAS))
else
  RUN        := $(or $(PYTHON),python3)
  TEST_READY :=
  DEMO_READY :=
endif

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

$(VENV)/bin/python:
	@$(FIND_PYTHON); \
	echo "making $(VENV) with $$("$$python" --version 2>&1) ($$python)"; \
	"$$python" -m venv --clear $(VENV)

# The stamp's name says what is installed. What the tests need covers what the demo needs (DEMO_READY, above).
$(VENV)/.ready-%: pyproject.toml $(VENV)/bin/python
	@echo "installing cutile[$*] into $(VENV)"
	@$(VENV)/bin/python -m pip install --quiet --editable '.[$*]'
	@touch '$@'

# ---- targets ----------------------------------------------------------------------------------------------------
demo: $(DEMO_READY)  ## run the main kernels on this machine's best device: checked, timed, compared
	@$(RUN) -m kernels $(ARGS)

test: $(TEST_READY)  ## run the tests (no GPU needed; GPU tests run where there is one)
	@$(RUN) -m pytest -n $(JOBS) $(ARGS)

check: $(TEST_READY)  ## tests, and before them lint, format and strict types
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m pyright --pythonpath "$$(command -v $(RUN))"
	@$(RUN) -m pytest -n $(JOBS) $(ARGS)

format: $(TEST_READY)  ## rewrite the source in the house format
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

notebooks: $(TEST_READY)  ## execute docs/tutorials and keep what their cells show
	@$(RUN) -m tests.docs.notebooks $(ARGS)

bench: $(DEMO_READY)  ## measure: ratios to NumPy (and torch, where installed), kept in docs/benchmarks
	@$(RUN) -m benchmarks.kernels.bench $(ARGS)

clean:  ## remove the environment and every cache inside the checkout
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## show this
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:[^#]*##/ /' | awk '{n=$$1; $$1=""; printf "  make %-10s%s\n", n, $$0}'
	@echo
	@echo "  PYTHON=python3.12   use this Python          ARGS='-k saxpy'   pass arguments on"
	@echo "  NOENV=1             install nothing: run with PYTHON (default python3) as it is"
