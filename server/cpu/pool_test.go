package cpu

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestPool runs jobs of every size up to some: each task is run once.
func TestPool(t *testing.T) {
	for _, workers := range []int{1, 2, 5} {
		p := NewPool(workers)
		for n := range 300 {
			ran := make([]atomic.Int32, n)
			p.Run(n, func(task int) { ran[task].Add(1) })
			for task := range ran {
				assert.Equal(t, int32(1), ran[task].Load(), "task %d of %d, %d workers", task, n, workers)
			}
		}
		p.Close()
	}
}
