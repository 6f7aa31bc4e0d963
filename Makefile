# Names the verbs; CMake does the work. `make help` lists them.
BUILD ?= build
JOBS ?= $(shell nproc)
MODEL ?= models/tiny
PREFIX ?= /usr/local

.PHONY: all help deps demo test test-all bench fuzz sbom soak install deb container clean

all: $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j $(JOBS) --target nmlp_command libneuronmlp.so libneuronmlp.a nmlp_manual -- --quiet
	@ln -sf $(BUILD)/neuronmlp neuronmlp

$(BUILD)/build.ninja:
	@sh scripts/install-deps
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null

help:
	@echo "make          install packages if missing, build ./neuronmlp"
	@echo "make demo     build, then show what it does in a few minutes, ending in a report to look at"
	@echo "make test     install packages if missing, build, run the tests (minutes)"
	@echo "make test-all also sanitizers, fuzzers, every kernel set, a browser, clang-tidy, long tests: all CI runs"
	@echo "make bench    benchmarks of this machine"
	@echo "make fuzz     run the fuzzers longer (SECONDS=600)"
	@echo "make sbom     what the program is made of, as SPDX, into $(BUILD)/neuronmlp.spdx.json"
	@echo "make soak     mixed commands with random faults (MINUTES=30)"
	@echo "make install  to PREFIX ($(PREFIX)): program, library, man pages, completion"
	@echo "make deb      Debian packages into $(BUILD)/deb (OPTIONS=-DNMLP_MPI=ON)"
	@echo "make container  an image of the server, by podman, buildah or docker"

deps:
	@sh scripts/install-deps

demo: all
	@cmake --build $(BUILD) -j $(JOBS) --target nmlp_peers -- --quiet
	@sh scripts/demo $(BUILD)/neuronmlp $(MODEL)

test: deps
	@sh scripts/test fast

test-all: deps
	@sh scripts/test all

bench: all
	@sh scripts/bench $(BUILD)

fuzz: deps
	@sh scripts/fuzz $(or $(SECONDS),600)

sbom: all
	@sh scripts/sbom $(BUILD) >$(BUILD)/neuronmlp.spdx.json
	@echo "$(BUILD)/neuronmlp.spdx.json"

soak: deps
	@sh scripts/soak $(or $(MINUTES),30)

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)
	@[ "$$(id -u)" -ne 0 ] || ldconfig # programs find the library at once

deb:
	@sh scripts/deb $(OPTIONS)

container:
	@sh scripts/container $(OPTIONS)

clean:
	@rm -rf build build-* neuronmlp
