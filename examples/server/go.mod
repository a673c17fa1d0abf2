module github.com/vkmla/vkmla/examples/server

go 1.26.0

require (
	github.com/stretchr/testify v1.11.1
	github.com/vkmla/vkmla v0.0.0
	golang.org/x/sync v0.23.0
)

require (
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/goki/vulkan v1.0.8 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

replace github.com/vkmla/vkmla => ../..
