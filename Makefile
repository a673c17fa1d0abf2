# Each target is one call; ARGS is passed on, e.g. make bench ARGS='--batch 1,128'.
.PHONY: help generate build test verify bench bench-compare lint clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

generate: ## compile changed shaders to shaders/spv and bring the second module file in step
	scripts/sync-modfile
	scripts/shaders $(ARGS)

build: ## bin/vkmla
	go build -o bin/vkmla ./cmd/vkmla

test: ## everything CI checks (scripts/test --help lists the steps)
	scripts/test $(ARGS)

verify: ## check every op on this machine's device against the reference
	go run ./cmd/vkmla verify $(ARGS)

bench: ## set up what is missing and run the benchmark
	scripts/run $(ARGS)

bench-compare: ## benchmark against another commit: make bench-compare REF=main
	scripts/bench-compare $(REF) $(ARGS)

lint: ## gofmt, go vet, staticcheck, module files
	scripts/test modfile format vet staticcheck

clean: ## remove what was built here
	rm -rf bin shaders/spv/.stamps
