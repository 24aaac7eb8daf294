# `make help` lists the targets.  Everything made here lies in .venv, build and demo; `make clean` removes it.
#
#   PYTHON     the interpreter that .venv is made from, 3.11 or newer
#   PIP_EXTRA  further arguments for pip, such as an index that holds the CPU build of torch
#   JOBS       how many tests `make test` runs side by side; three for two processors, as many wait
#   STUDY      which studies `make experiments` makes, such as "read train"
#   OPTIONS    what it hands to `penstock bench` for each, such as "--repeats 1"
#   SCALE      ci: it makes each (or STUDY) at its smallest, and holds the shape of what it finds
#   PLACES     where `make matrix` tries the wheels, such as "debian-11 debian-sid"
#   TESTS      what `make test` hands to pytest, such as tests/test_log.py or "-m 'not slow'"; of
#              `make matrix` fewer files of tests, such as "recorder log", where the machine is busy
PYTHON ?= python3
PIP_EXTRA ?=
JOBS ?= $(shell expr 3 \* $$(nproc) / 2)
TESTS ?=
CC ?= cc

venv := .venv
bin := $(venv)/bin
pip := $(bin)/python -m pip --quiet --disable-pip-version-check install $(PIP_EXTRA)

native_sources := $(wildcard native/*.c)
native_headers := $(wildcard native/*.h native/*.map)
feed_sources := $(wildcard native/feed/*.c)
feed_headers := $(wildcard native/feed/*.h native/feed/*.map)
copier_sources := $(wildcard native/copier/*.c)
copier_headers := $(wildcard native/copier/*.h native/copier/*.map)
attach_sources := $(wildcard native/attach/*.c)
attach_headers := $(wildcard native/attach/*.h)
ahead_sources := $(wildcard native/ahead/*.c)
ahead_headers := $(wildcard native/ahead/*.h)
container_sources := $(wildcard native/container/*.c)
native_tests := $(wildcard tests/native/*.c)
feed_tests := $(wildcard tests/native/feed/*.c)
fuzz_tests := $(wildcard tests/native/fuzz/*.c)
copier_tests := $(wildcard tests/native/copier/*.c)
comma := ,
c_files := $(wildcard native/*.[ch] native/feed/*.[ch] native/copier/*.[ch] native/attach/*.[ch] native/container/*.[ch] native/ahead/*.[ch] native/beside/*.[ch] lab/src/penstock_lab/*.c tests/native/*.[ch] tests/native/feed/*.[ch] tests/native/copier/*.[ch] tests/workloads/*.c tests/workloads/*.h lab/benchmarks/*.[ch])
package_files := $(shell find src/penstock lab/src lab/pyproject.toml -type f -not -name '*.py[co]' -not -name '*.so' -not -name inject -not -name enter -not -name probe -not -name faultwatch -not -name readahead)
package_sources := $(package_files) $(native_sources) $(native_headers) \
    $(feed_sources) $(feed_headers) \
    $(copier_sources) $(copier_headers) \
    $(attach_sources) $(attach_headers) $(container_sources) \
    $(ahead_sources) $(ahead_headers) \
    CMakeLists.txt pyproject.toml README.md LICENSE

# The same flags as CMakeLists.txt; tests/test_architecture.py holds the two equal.
warnings := -Wall -Wextra -Werror
native_flags := -std=gnu11 -D_GNU_SOURCE -O2 -g -fPIC -fvisibility=hidden -fexceptions $(warnings)
common_links := -pthread -Wl,-z,now -Wl,-z,relro -Wl,--no-undefined -ldl
native_links := $(common_links) -Wl,--version-script=native/recorder.map
feed_links := $(common_links) -Wl,--version-script=native/feed/feed.map
copier_links := $(common_links) -Wl,--version-script=native/copier/copier.map
# Runs in containers of any libc or none, so it brings none and wants nothing of it.
enter_flags := -std=gnu11 -D_GNU_SOURCE -O2 -g -ffreestanding -fno-stack-protector -fno-tree-loop-distribute-patterns $(warnings)
enter_links := -nostdlib -static -no-pie
sanitize := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer

.DELETE_ON_ERROR:
.SECONDARY:
export PYTEST_DISABLE_PLUGIN_AUTOLOAD := 1
.PHONY: help setup setup-system demo test thorough lint format native asan bench soak mutants fuzz fuzz-native experiments site wheel wheels matrix clean check-tools

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "  %-14s %s\n", $$1, $$2 }'

setup: $(venv)/.package $(venv)/.tested ## .venv with the package as its wheel, and what the tests need
	@:

setup-system: ## the system packages that the tests use (apt; root or sudo)
	@sh .ci/setup-system

demo: $(venv)/.package ## a training that waits, the reason, the remedy and the proof; demo/run.html, demo/compare.html
	rm -rf demo
	$(bin)/penstock demo -o demo

# The system packages first, as the build needs some of them.  Where they cannot be installed, the last
# line says again which are missing: what stands before the tests has scrolled away.
test: ## every test, against the installed package; installs the system packages first where root or sudo -n may
	@sh .ci/setup-system --or-skip
	@$(MAKE) --no-print-directory setup
	$(bin)/python -m pytest -n $(JOBS) $(TESTS); status=$$?; sh .ci/setup-system --missing; exit $$status

thorough: export PENSTOCK_THOROUGH := 1
thorough: test ## make test, with every repetition of trials at random and every kind of like programs

lint: $(venv)/.lint ## formatting, ruff, mypy --strict, clang-format
	$(bin)/ruff format --check src tests lab
	$(bin)/ruff check src tests lab
	$(bin)/mypy
	$(bin)/clang-format --dry-run -Werror $(c_files)

format: $(venv)/.lint ## what lint would complain about, mended where a program can
	$(bin)/ruff format src tests lab
	$(bin)/ruff check --fix src tests lab
	$(bin)/clang-format -i $(c_files)

# It knows the registers of one processor; elsewhere gdb does its work.
injector := $(if $(filter x86_64,$(shell uname -m)),src/penstock/inject)

native: src/penstock/librec.so src/penstock/libfeed.so src/penstock/libcopier.so src/penstock/enter src/penstock/probe src/penstock/faultwatch src/penstock/readahead $(injector) ## the recorder, the reader and the copier into src/penstock, without Python

asan: $(native_tests:tests/native/%.c=build/asan/%.passed) $(feed_tests:tests/native/%.c=build/asan/%.passed) $(copier_tests:tests/native/%.c=build/asan/%.passed) ## the native tests under ASan and UBSan

# Readers in C of bytes that others may write; by libFuzzer: make fuzz-native CLANG=clang MINUTES=60
build/fuzz-native/%: tests/native/fuzz/%.c tests/native/fuzz/driver.h $(native_sources) $(native_headers) $(attach_sources)
	@mkdir -p $(@D)
	$(or $(CLANG),$(CC)) $(native_flags) -O1 $(if $(CLANG),-fsanitize=fuzzer$(comma)address$(comma)undefined,-DPENSTOCK_MUTATE $(sanitize)) -Inative -o $@ $< $(if $(filter staged,$*),$(filter-out native/staged.c,$(native_sources))) -pthread -ldl

fuzz-native: $(fuzz_tests:tests/native/fuzz/%.c=build/fuzz-native/%) ## the readers in C, with libFuzzer where CLANG= names a clang
	for target in $^; do $$target $(if $(CLANG),-max_total_time=$(shell expr 20 \* $(or $(MINUTES),3)),2000000) || exit 1; done

bench: ## the speed bars; rewrites the table in docs/performance.md (this and the next three: lab/Makefile)
soak: ## hours of kills, forks, signals, racing writers, power cuts and full disks, chosen at random
mutants: ## faults put in on purpose, one at a time: which tests see them
experiments: ## the studies, with tables and figures into docs/experiments; STUDY=read: one; SCALE=ci: at their smallest
bench soak mutants experiments:
	$(MAKE) -C lab $@

fuzz: $(venv)/.package $(venv)/.tested ## every reader of files with damaged and hostile ones, in turns; MINUTES=60
	cd tests && $(abspath $(bin))/python -W ignore -m fuzz --minutes $(or $(MINUTES),60) --into ../build/fuzz

wheel: | check-tools ## the wheel, in dist
	$(PYTHON) -m venv build/wheel-venv
	build/wheel-venv/bin/python -m pip --quiet --disable-pip-version-check wheel $(PIP_EXTRA) --no-deps --wheel-dir dist .

site: $(venv)/.package ## the documentation as a site, in build/site; needs no network but to install MkDocs
	$(bin)/python .ci/dependencies.py site > $(venv)/requirements-site.txt
	$(pip) -r $(venv)/requirements-site.txt
	NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build --strict

wheels: | check-tools ## wheels for any Linux with glibc 2.28, x86-64 and aarch64, and the sdist, in dist; no container
	PIP_EXTRA="$(PIP_EXTRA)" $(PYTHON) .ci/wheels.py dist

matrix: wheels ## the wheels in root folders of Debian 11, 12, 13 and sid, and on an emulated aarch64; needs mmdebstrap; PLACES="debian-13"
	PIP_EXTRA="$(PIP_EXTRA)" TESTS="$(TESTS)" $(PYTHON) .ci/matrix.py dist $(PLACES)

clean: ## remove everything that was made here
	rm -rf $(venv) build dist demo src/penstock/*.so src/penstock/inject src/penstock/enter src/penstock/probe src/penstock/faultwatch src/penstock/readahead .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests lab -name __pycache__ -type d -exec rm -rf {} +

check-tools:
	@PYTHON="$(PYTHON)" CC="$(CC)" sh .ci/check-tools

$(venv)/bin/python: | check-tools
	$(PYTHON) -m venv $(venv)

# The dependencies in one stamp, the package in another: a changed source costs seconds.
$(venv)/.dependencies: pyproject.toml $(venv)/bin/python
	$(bin)/python .ci/dependencies.py demo > $(venv)/requirements.txt
	$(pip) -r $(venv)/requirements.txt
	touch $@

# The frameworks are gigabytes that the demonstration does not need.
$(venv)/.tested: pyproject.toml $(venv)/.dependencies
	$(bin)/python .ci/dependencies.py demo test frameworks > $(venv)/requirements-test.txt
	$(pip) -r $(venv)/requirements-test.txt
	touch $@

$(venv)/.lint: pyproject.toml $(venv)/.dependencies
	$(bin)/python .ci/dependencies.py lint > $(venv)/requirements-lint.txt
	$(pip) -r $(venv)/requirements-lint.txt
	touch $@

$(venv)/.package: $(package_sources) $(venv)/.dependencies
	$(pip) --no-deps --force-reinstall . ./lab
	touch $@

src/penstock/librec.so: $(native_sources) $(native_headers)
	$(CC) $(native_flags) -shared -o $@ $(native_sources) $(native_links)

src/penstock/libfeed.so: $(feed_sources) $(feed_headers)
	$(CC) $(native_flags) -shared -o $@ $(feed_sources) $(feed_links)

src/penstock/libcopier.so: $(copier_sources) $(copier_headers)
	$(CC) $(native_flags) -shared -o $@ $(copier_sources) $(copier_links)

src/penstock/inject: $(attach_sources) $(attach_headers)
	$(CC) $(native_flags) -o $@ $(attach_sources)

src/penstock/enter: native/container/enter.c
	$(CC) $(enter_flags) -o $@ $< $(enter_links)

src/penstock/probe: native/container/probe.c
	$(CC) $(native_flags) -o $@ $< -ldl

src/penstock/readahead: $(ahead_sources) $(ahead_headers)
	$(CC) $(native_flags) -o $@ $(ahead_sources) -pthread

src/penstock/faultwatch: native/beside/faultwatch.c native/faults.h
	$(CC) $(native_flags) -o $@ $< -ldl

# The recorder leaves its own object's slots alone: it is a library here too.
build/asan/librec.so: $(native_sources) $(native_headers)
	@mkdir -p $(@D)
	$(CC) $(native_flags) -O1 $(sanitize) -shared -o $@ $(native_sources) $(native_links)

build/asan/feed/%: tests/native/feed/%.c $(feed_sources) $(feed_headers)
	@mkdir -p $(@D)
	$(CC) $(native_flags) -O1 $(sanitize) -Inative/feed -o $@ $< $(feed_sources) -pthread -ldl

# The test includes the source, with a system call of its own in the kernel's place.
build/asan/copier/%: tests/native/copier/%.c $(copier_sources) $(copier_headers)
	@mkdir -p $(@D)
	$(CC) $(native_flags) -O1 $(sanitize) -Inative/copier -o $@ $<

build/asan/%: tests/native/%.c tests/native/logs.h tests/workloads/known.h build/asan/librec.so
	$(CC) $(native_flags) -O1 $(sanitize) -Inative -o $@ $< -Lbuild/asan -lrec -Wl,-rpath,'$$ORIGIN' -Wl,-z,now

build/asan/%.passed: build/asan/%
	$<
	@touch $@
