package describe

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestProgram holds what is said of a program, by what its build recorded.
func TestProgram(t *testing.T) {
	host := ", " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
	commit := debug.BuildSetting{Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"}
	p := programOf(&debug.BuildInfo{Main: debug.Module{Version: "v0.3.0"}, Settings: []debug.BuildSetting{commit,
		{Key: "vcs.modified", Value: "true"}}})
	assert.Equal(t, commit.Value, p.Commit)
	assert.Equal(t, "v0.3.0, commit 0123456789ab, modified"+host, p.String())
	assert.Equal(t, "(devel)"+host, programOf(&debug.BuildInfo{}).String())
	assert.NotEmpty(t, Running().Version)
}
