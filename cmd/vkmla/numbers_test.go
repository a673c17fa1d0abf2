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

// TestBytesOf holds the sizes that a text stands for, and what is refused.
func TestBytesOf(t *testing.T) {
	for text, want := range map[string]uint64{"": 0, "24GiB": 24 << 30, "80 GB": 80e9, "0.5gi": 1 << 29, "123": 123, "8M": 8e6} {
		got, err := bytesOf("plan", "memory", text)
		assert.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for _, text := range []string{"GiB", "-1GB", "1XB", "1e30", "NaN", "24GiBs"} {
		_, err := bytesOf("plan", "memory", text)
		assert.Error(t, err, text)
	}
}
