# make demo           build, install, fetch the default model and ask it a question
# make test           build, install and run the tests (without torch)
# make native         build the extension in place, for running from the source tree
# make test-sanitize  run the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
PYTHON ?= python3
VENV ?= .venv
JOBS ?= $(shell nproc)
BIN := $(VENV)/bin
PARALLEL := -n auto --maxprocesses=4 --dist=worksteal
BUILD := CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS)

PACKAGE_FILES := pyproject.toml CMakeLists.txt $(wildcard README.md) $(shell find src csrc cmake -type f \
	\( -name '*.py' -o -name '*.cc' -o -name '*.h' -o -name '*.cmake' -o -name py.typed \))

.PHONY: demo test lint test-cpp test-arm test-sanitize native clean
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	$(BIN)/octavo run "What is the capital of France?"

test: $(VENV)/installed $(VENV)/test-tools
	$(BIN)/python -m pytest $(PARALLEL) --ignore=tests/live

lint: $(VENV)/installed $(VENV)/lint-tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src

# Build tools live in the environment, not in an isolated one made anew each time: so a rebuild is incremental.
$(VENV)/build-tools:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		"scikit-build-core>=0.11" "nanobind>=2.8" "cmake>=3.24" "ninja>=1.10"
	touch $@

$(VENV)/installed: $(VENV)/build-tools $(PACKAGE_FILES)
	$(BUILD) $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation .
	touch $@

$(VENV)/test-tools: $(VENV)/build-tools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pytest>=8" "pytest-xdist>=3.5" "hypothesis>=6.100" \
		"fastapi>=0.115" "uvicorn>=0.30" "httptools>=0.6" "uvloop>=0.20" "prometheus_client>=0.20" \
		"openai>=1.60" "httpx>=0.27"
	touch $@

$(VENV)/lint-tools: $(VENV)/test-tools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "ruff>=0.9" "mypy>=1.14"
	touch $@

native: $(VENV)/build-tools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "numpy>=1.26"
	$(BIN)/cmake -S . -B build/native -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
		-DPython_EXECUTABLE=$(abspath $(BIN))/python -DOCTAVO_WERROR=ON
	$(BIN)/cmake --build build/native -j $(JOBS)
	install -m 644 build/native/_native*.so build/native/_native.pyi src/octavo/backends/native/

test-cpp: $(VENV)/build-tools
	$(BIN)/cmake -S . -B build/cpp -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
		-DOCTAVO_BUILD_PYTHON=OFF -DOCTAVO_BUILD_TESTS=ON -DOCTAVO_WERROR=ON
	$(BIN)/cmake --build build/cpp -j $(JOBS)
	build/cpp/octavo_tests

# The same tests compiled for AArch64 and run by an emulator; their results must have the bits that this machine's have.
ARM_COMPILER ?= aarch64-linux-gnu-g++
ARM_EMULATOR ?= qemu-aarch64-static
test-arm: test-cpp
	@for tool in $(ARM_COMPILER) $(ARM_EMULATOR); do command -v $$tool >/dev/null || { \
		echo "test-arm needs $$tool; on Debian: apt-get install g++-aarch64-linux-gnu qemu-user-static" >&2; exit 1; }; done
	$(BIN)/cmake -S . -B build/arm -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
		-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=$(ARM_COMPILER) \
		-DCMAKE_EXE_LINKER_FLAGS=-static -DOCTAVO_BUILD_PYTHON=OFF -DOCTAVO_BUILD_TESTS=ON -DOCTAVO_WERROR=ON
	$(BIN)/cmake --build build/arm -j $(JOBS)
	build/cpp/octavo_tests --hashes >build/cpp/hashes.txt
	$(ARM_EMULATOR) build/arm/octavo_tests --hashes >build/arm/hashes.txt
	diff build/cpp/hashes.txt build/arm/hashes.txt
	@echo "AArch64 gives the same bits: $$(wc -l <build/arm/hashes.txt) results"

# With AVX-512 and AMX emulated, so that their code, too, is checked on any x86-64 machine: its bits and its reads.
test-sanitize: $(VENV)/build-tools
	$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
		-DOCTAVO_BUILD_PYTHON=OFF -DOCTAVO_BUILD_TESTS=ON -DOCTAVO_SANITIZE=address,undefined -DOCTAVO_EMULATE=ON
	$(BIN)/cmake --build build/sanitize -j $(JOBS)
	build/sanitize/octavo_tests

clean:
	rm -rf build dist $(VENV) src/octavo/backends/native/_native*
