package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestNumbers holds the numbers that a value stands for, and what is refused.
func TestNumbers(t *testing.T) {
	for text, want := range map[string][]int{
		"7": {7}, "1,2, 3": {1, 2, 3}, "1-4": {1, 2, 3, 4}, "1..3": {1, 2, 3}, "1..64:x2": {1, 2, 4, 8, 16, 32, 64},
		"1-8+3": {1, 4, 7}, "1-9*3": {1, 3, 9},
		"3..50:x4": {3, 12, 48}, "0-10:+5,99": {0, 5, 10, 99}, "9223372036854775806..9223372036854775807:x2": {9223372036854775806},
	} {
		var list []int
		n := numbers{list: &list}
		if assert.NoError(t, n.Set(text), text) {
			assert.Equal(t, want, list, text)
		}
	}
	for _, text := range []string{"", "x", "1,", "4-1", "1..8:x1", "0..8:x2", "0-8*2", "1-8:+0", "1-8+", "1-8:", "8+1",
		"1-2000", "1..2..3", "-1", "99999999999999999999"} {
		var list []int
		assert.Error(t, (&numbers{list: &list}).Set(text), text)
		assert.Empty(t, list, text)
	}
	list := []int{5}
	n := numbers{list: &list}
	assert.NoError(t, n.Set("1-2"))
	assert.NoError(t, n.Set("9"))
	assert.Equal(t, "1,2,9", n.String(), "a default goes, what is given stays")
}
