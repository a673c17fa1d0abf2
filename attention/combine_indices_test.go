package attention_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/testkit"
)

func TestCombineIndices(t *testing.T) { testkit.TestOp(t, "combine_topk_swa_indices") }

func TestCombinedWidth(t *testing.T) {
	for k, width := range map[int]int{0: 128, 512: 640, 1024: 1152, 8192: 8320} {
		got := attention.CombinedWidth(k, 128)
		assert.Equal(t, width, got, "CombinedWidth(%d) = %d", k, got)
	}
}
