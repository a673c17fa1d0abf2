// Written by scripts/sync-modfile from go.mod.
module github.com/vkmla/vkmla

go 1.26

require github.com/goki/vulkan v1.0.8

replace github.com/goki/vulkan => github.com/vulkan-go/vulkan v0.0.0-20221209234627-c0a353ae26c8
