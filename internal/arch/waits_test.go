package arch

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// waiting are the shaders whose workgroups wait for others of the same launch. Each counts its
// looks and gives up, and is launched so only where tuning.MayWait says that others go on.
// Workgroups of idx_topk_lanes.comp and lib/linear_norm.glsl count arrivals and wait for nobody:
// whoever comes last does the rest.
var waiting = []string{"proj_linear_chain.comp"}

// looking is what a shader needs to see in a loop what another workgroup writes meanwhile.
var looking = regexp.MustCompile(`coherent\s+volatile|volatile\s+coherent|atomicLoad|atomicCompSwap|atomicExchange`)

// TestWaiting finds shaders that could wait for other workgroups.
func TestWaiting(t *testing.T) {
	var found []string
	walk(t, func(p string) {
		if !strings.HasPrefix(p, "shaders/") || !slices.Contains([]string{".comp", ".glsl"}, filepath.Ext(p)) {
			return
		}
		if looking.MatchString(read(t, p)) {
			found = append(found, strings.TrimPrefix(p, "shaders/"))
		}
	})
	assert.Equal(t, waiting, found, "a kernel whose workgroups wait for others hangs many GPUs")
}
