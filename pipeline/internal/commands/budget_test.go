package commands

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/vk"
)

func TestSubmissions(t *testing.T) {
	const budget = 100 * time.Nanosecond // parts are to have half of it
	var single []vk.Part
	for i := range 7 {
		single = append(single, vk.Part{First: i, Operations: 1, Divisible: i > 3})
	}
	before, pieces := (&Commands{parts: single, took: []float64{10, 30, 20, 70, 5, 101, 1}}).cuts(budget)
	assert.Equal(t, []int{2, 3, 4, 5, 6}, before)
	assert.Equal(t, map[int]int{5: 3}, pieces)
	// What is in pieces already stays so, if all of them take too long.
	in3 := []vk.Part{{First: 0, Operations: 1}, {First: 1, Operations: 1}, {First: 1, Operations: 1}, {First: 1, Operations: 1}, {First: 2, Operations: 1}}
	for _, c := range []struct {
		took   []float64
		before []int
		pieces map[int]int
	}{
		{[]float64{1, 40, 30, 40, 1}, []int{1, 2}, map[int]int{1: 3}},
		{[]float64{1, 10, 10, 10, 1}, nil, map[int]int{}},
		{[]float64{1, 9999, 9999, 9999, 1}, []int{1, 2}, map[int]int{1: vk.MaxPieces}},
		{[]float64{1, 10, -1, 10, 1}, []int{1, 2}, map[int]int{}},
	} {
		before, pieces := (&Commands{parts: in3, took: c.took}).cuts(budget)
		assert.True(t, slices.Equal(before, c.before) && maps.Equal(pieces, c.pieces),
			"%v: before %v, pieces %v", c.took, before, pieces)
	}
	two := []vk.Part{{First: 0, Operations: 2, Divisible: true}, {First: 2, Operations: 1}}
	for _, c := range []struct {
		name       string
		budget     time.Duration
		each       bool
		parts      []vk.Part
		took       []float64
		work, then float64
		want       bool
	}{
		{"no budget", -1, false, two, []float64{1e9, 1e9}, 1, 9, true},
		{"never divided", budget, false, nil, nil, 1, 9, true},
		{"not run yet", budget, false, two, nil, 0, 9, true},
		{"measured, to be packed", budget, true, single[:3], []float64{1, 1, 1}, 1, 1, false},
		{"being measured", budget, true, single, nil, 0, 1, true},
		{"short", budget, false, two, []float64{50, 20}, 100, 200, true},
		{"too much more to do", budget, false, two, []float64{50, 20}, 100, 201, false},
		{"more to do that takes as long as it can", budget, false, two, []float64{50, 20}, 1, 26, true},
		{"more to do that may take too long", budget, false, two, []float64{50, 20}, 1, 27, false},
		{"less to do", budget, false, two, []float64{99, 20}, 100, 1, true},
		{"not to be divided", budget, false, two, []float64{1, 1000}, 100, 100, true},
		{"one launch, to be divided", budget, false, []vk.Part{{Operations: 1, Divisible: true}}, []float64{1000}, 100, 100, false},
		{"too long", budget, false, two, []float64{101, 1}, 100, 100, false},
	} {
		x := &Commands{Each: c.each, parts: c.parts, took: c.took, work: c.work}
		assert.Equal(t, c.want, x.suits(c.budget, c.then, 2), c.name)
	}
}

func TestPack(t *testing.T) {
	for _, c := range []struct {
		times  []float64
		budget float64
		want   []int
	}{
		{nil, 1, nil},
		{[]float64{1, 1, 1}, 3, nil},
		{[]float64{1, 1, 1}, 2, []int{2}},
		{[]float64{1, 5, 1, 1}, 2, []int{1, 2}},
		{[]float64{5, 5}, 2, []int{1}},
		{[]float64{1, -1, 1, 1}, 9, []int{1, 2}},
		{[]float64{-1, 1}, 9, []int{1}},
	} {
		got := pack(c.times, c.budget)
		assert.True(t, slices.Equal(got, c.want), "%v in parts of %g: %v, want %v", c.times, c.budget, got, c.want)
	}
}
