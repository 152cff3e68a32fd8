# Two commands do everything on a fresh Debian 12 machine, as root: `make run` and `make test`.
# Both install what is missing first (tools/setup.sh) and build into build/release.
.PHONY: run test build setup lint sanitize fuzz soak bench gpu-bundle clean

# A second clone compiles from the first one's cache: paths are hashed relative to the clone.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

build/release/mdi: build

build: setup
	@cmake --preset release >/dev/null
	@cmake --build build/release

run: build
	@tools/demo.sh build/release/mdi

test: build
	@tools/python.sh
	@ctest --test-dir build/release --output-on-failure --parallel 2

# The suite again, under AddressSanitizer and UBSan (tests/pace.h says what that does to limits on time).
sanitize: setup
	@cmake --preset asan >/dev/null
	@cmake --build build/asan
	@ctest --test-dir build/asan --output-on-failure --parallel 2

# clang-format and clang-tidy over what is ours.
lint: setup
	@tools/lint.sh

# Each fuzz target for SECONDS (default 60).
fuzz: setup
	@tools/fuzz.sh $(or $(SECONDS),60)

# 1,000 streams with random hang-ups and stalls against a running server, for SECONDS (default 120).
soak: build
	@tests/server/soak.py build/release/mdi models/small --streams 1000 --seconds $(or $(SECONDS),120)

# Compiles the CUDA backend for sm_90a and links mdi with it (needs nvcc; no GPU).
cuda: setup
	@cmake --preset cuda >/dev/null
	@cmake --build build/cuda --target mdi

# Dense products beside oneDNN's own rate, and decode of a tiny checkpoint.
bench: build
	@tools/bench.sh build/release

# What travels to the GPU machine beside the repository: unpack it there and, in the repository, run gpu/run.sh OUT.
gpu-bundle: setup
	@tools/gpu_bundle.sh

setup:
	@tools/setup.sh

clean:
	rm -rf build
