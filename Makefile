# Each target is one call; ARGS is passed on, e.g. make bench ARGS='--batch 1,128'.
.PHONY: help generate build lint test verify bench bench-compare clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

generate: ## compile changed shaders to shaders/spv, write the tables of documents
	scripts/shaders $(ARGS)
	go run ./internal/lab/tables

build: ## bin/vkmla
	go build -o bin/vkmla ./cmd/vkmla

lint: ## gofmt, go vet, staticcheck
	scripts/test format vet staticcheck

test: ## checks and tests; scripts/test --help lists the steps
	scripts/test $(ARGS)

verify: ## check every op on this machine's device against the reference
	go run ./cmd/vkmla verify $(ARGS)

bench: ## set up what is missing and run the benchmark
	scripts/run $(ARGS)

bench-compare: ## benchmark against another commit: make bench-compare REF=main
	scripts/bench-compare $(REF) $(ARGS)

clean: ## remove what was built here
	rm -rf bin shaders/spv/.stamps
