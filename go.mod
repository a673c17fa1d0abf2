module github.com/vkmla/vkmla

go 1.26

require github.com/goki/vulkan v1.0.8
