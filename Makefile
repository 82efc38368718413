# make demo    run the demonstration
# make test    run the tests, C++'s and Python's
# make stress  repeat the tests of threads, streams, signals and time beside busy loops
# make lint    check formatting, style and types
# make bench   run the benchmarks
# make xla     get XLA's headers, for JAX's programs, into build/xla
# make windows macos  compile the core for these systems, and run the tests of the CPU for Windows under Wine
# make wheel   build a wheel for this interpreter and this Linux, into dist/
# make sdist   pack the sources, the compiled shaders and headers that a build needs, into dist/
# make wheels  build and test the wheels of a release, into dist/, for each Python that is there
# make release build everything that a release uploads, and check it
# make format  format everything
# make site    build the documentation into build/site
# make notebooks  run the notebooks and keep their outputs
# make clean   remove what was built
#
# PYTEST_ARGS and PYTEST_ENV are options and variables for the tests in Python.
#
# Each target installs what it lacks: Debian packages (as root or with sudo), and a .venv with the package, which is
# rebuilt when its sources have changed.

PYTHON ?= python3
JOBS ?= $(shell nproc)
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find CMakeLists.txt pyproject.toml cmake cpp/include cpp/src cpp/third_party python shaders -type f -not -name '*.pyc')
CPP := $(shell find cpp/include cpp/src cpp/tests python/bindings tests/cells -name '*.h' -o -name '*.cpp')
# The package is always built in one folder, so that everything is compiled once.
ALWAYS := -C build-dir=build/release -C cmake.define.VKRNN_WERROR=ON -C cmake.define.VKRNN_VULKAN=ON
# Packages have the handler for JAX's programs; other builds have it if `make xla` has got XLA's headers.
XLA := $(CURDIR)/build/xla
BUILD_OPTIONS = $(ALWAYS) -C cmake.define.VKRNN_CPU_TARGETS=$(KERNELS) $(if $(wildcard $(XLA)),-C cmake.define.VKRNN_XLA=ON -C cmake.define.XLA_HEADERS=$(XLA))
# For a demonstration alone, the CPU's kernels are compiled for this processor only. Another target adds the others, and
# later builds keep them.
KERNELS := all
$(VENV)/.demo: KERNELS = $(if $(wildcard $(patsubst %,$(VENV)/.%,test dev site notebooks)),all,native)
# The programs that make packages.
PACKAGERS := build/tools/.made
export PYTHON

.PHONY: demo test test-cpp test-python stress lint tidy format bench xla wheel sdist wheels release site notebooks clean
.PHONY: tsan windows macos build-cpp need-build need-test need-windows need-wheels need-ci
.DELETE_ON_ERROR:

demo: $(VENV)/.demo
	$(BIN)/python -m vkrnn demo $(DEMO_ARGS)

# Runs both halves, even if the first fails, and says at the end how each has ended.
test:
	@report=; status=0; \
	for half in test-cpp test-python; do \
		if $(MAKE) --no-print-directory $$half; then ended=passed; else ended=FAILED; status=1; fi; \
		report="$$report  $$half: $$ended"; \
	done; \
	echo; echo "make test:$$report"; exit $$status

test-python: $(VENV)/.test
	$(PYTEST_ENV) $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(PYTEST_ARGS)

# Uses the folder and the CMake of the package's build, so that nothing is compiled twice: shaders and libraries are
# made again if CMake's path changes.
build-cpp: $(VENV)/.test need-test
	$(BIN)/cmake --preset release
	$(BIN)/cmake --build --preset release -j $(JOBS)

test-cpp: build-cpp
	$(BIN)/ctest --preset release -j $(JOBS)

# See .ci/stress for the variables that change what is repeated, and how often.
stress: build-cpp
	sh .ci/stress

lint: $(VENV)/.dev need-ci
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict python/vkrnn tests/typing/right.py
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python tests/typing/right.py
	$(BIN)/stubtest vkrnn._core --concise --allowlist tests/support/stubtest_allowlist.txt
	clang-format --dry-run -Werror $(CPP)

# Not part of lint, because it takes minutes. CPU kernels are left out, because Highway's vectors cause false reports,
# and the sources for other systems.
# Reading headers takes most of the time, so files are checked as one, except by checks of the main file only. Each
# strategy is checked by itself, because their constants have the same names. Of the checks of one file, the analyzer
# takes longest; `make tidy TIDY_ANALYZER=deep` lets it look further into calls.
TIDY_ANALYZER := shallow
TIDY_FILES := $(filter-out cpp/src/cpu/kernels/% cpp/src/base/system_macos.cpp cpp/src/base/system_windows.cpp,$(filter cpp/src/%.cpp,$(CPP)))
TIDY_STRATEGIES := $(notdir $(patsubst %/,%,$(wildcard cpp/src/plan/*/)))
TIDY_FILES_vulkan := $(wildcard cpp/src/vk/*/*.cpp)
TIDY_FILES_core := $(filter-out $(TIDY_FILES_vulkan) $(wildcard cpp/src/plan/*/*.cpp),$(TIDY_FILES))
TIDY_ONE_FILE := clang-analyzer-*,clang-diagnostic-*,misc-unused-*,modernize-deprecated-headers,readability-duplicate-include
# Vulkan's headers take longest to read. They are compiled once, by the Clang that Debian's clang-tidy depends on.
TIDY_VULKAN := build/debug/tidy/vulkan.pch
# Absolute paths, because .clang-tidy chooses headers, and files that are checked as one, by them.
TIDY_FLAGS = -std=c++20 -I$(CURDIR)/cpp/include -I$(CURDIR)/cpp/src -I$(CURDIR)/shaders \
	$$(grep -om1 -e -DVKRNN_MATRICES build/debug/compile_commands.json)

tidy: need-ci
	cmake --preset debug -DVKRNN_PYTHON=OFF
	rm -f $(TIDY_VULKAN)
	$(MAKE) -j $(JOBS) --output-sync $(patsubst %,tidy/%,vulkan core $(TIDY_STRATEGIES)) $(TIDY_FILES:%=tidy-file/%)

tidy/%:
	mkdir -p build/debug/tidy
	printf '#include "%s"\n' $(patsubst cpp/src/%,%,$(or $(TIDY_FILES_$*),$(wildcard cpp/src/plan/$*/*.cpp))) \
		> build/debug/$@.cpp
	clang-tidy --quiet --checks='-clang-analyzer-*,-bugprone-suspicious-include' build/debug/$@.cpp -- $(TIDY_FLAGS)

tidy-file/%:
	clang-tidy --quiet --checks='-*,$(TIDY_ONE_FILE)' $* -- $(TIDY_FLAGS) \
		-Xclang -analyzer-config -Xclang mode=$(TIDY_ANALYZER) $(if $(filter $(TIDY_VULKAN),$^),-include-pch $<)

$(patsubst %,tidy-file/%,$(filter-out cpp/src/vk/memory/workers.cpp,$(TIDY_FILES_vulkan))): $(TIDY_VULKAN)

$(TIDY_VULKAN): cpp/src/vk/device/vulkan.h
	mkdir -p $(@D)
	"$$(dirname "$$(readlink -f "$$(command -v clang-tidy)")")/clang++" $(TIDY_FLAGS) -x c++-header $< -o $@

# Not part of test, because compiling takes minutes.
tsan: need-ci
	cmake --preset tsan
	cmake --build --preset tsan -j $(JOBS)
	ctest --preset tsan -j $(JOBS)

windows macos: need-windows $(PACKAGERS) build/vulkan
	sh .ci/cross $@

format: $(VENV)/.dev need-ci
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	clang-format -i $(CPP)

bench: $(VENV)/.demo
	$(BIN)/python -m bench.cells $(BENCH_ARGS)

sdist: need-build $(PACKAGERS) build/vulkan xla
	sh .ci/sdist

# From the folder of the other builds, so that nothing is compiled again.
wheel: $(VENV)/.dev xla
	rm -f dist/*.whl
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist $(BUILD_OPTIONS) .

# From the source package, so that the wheels show that it is complete.
wheels: sdist need-wheels
	sh .ci/wheels $(PYTHONS)
	sh .ci/arm64

release: wheels site
	sh .ci/release

# Warnings are errors, such as dead links and undocumented public names.
site: $(VENV)/.site
	$(BIN)/python -m sphinx -W --keep-going -q -d build/doctrees -c docs . build/site
	@echo "The site is at file://$(CURDIR)/build/site/index.html"

# On the CPU device, which every machine has.
notebooks: $(VENV)/.notebooks
	VKRNN_DEVICE="cpu (" $(BIN)/python notebooks/run.py notebooks/*.ipynb

clean:
	rm -rf build dist .venv .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# The environment with the package and one of its extras: demo, test, dev, site or notebooks.
$(VENV)/.created:
	sh .ci/need build
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --upgrade pip scikit-build-core pybind11 cmake ninja
	touch $@

$(VENV)/.%: $(VENV)/.created $(SOURCES)
	$(BIN)/python -m pip install --quiet --no-compile --no-build-isolation $(BUILD_OPTIONS) ".[$*]"
	touch $@

$(PACKAGERS): pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --upgrade pip
	$(@D)/bin/pip install --quiet --group sdist --group wheels
	touch $@

build/vulkan:
	sh .ci/vulkan $@

xla: $(XLA)

$(XLA): | $(VENV)/.created
	sh .ci/xla $(BIN)/python $@

need-build need-test need-windows need-wheels need-ci: need-%:
	sh .ci/need $*
