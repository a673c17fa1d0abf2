package opkit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// What the device lacks, what does not fit and what a descriptor cannot hold is
// passed over; a build that was asked for is never replaced, and one whose probe fails is none
// that the device lacks.
func TestChooseFit(t *testing.T) {
	ladder := []tuning.Variant{{Name: CMB, Requires: []string{"cooperativeMatrix", "bf16"}},
		{Name: CM, Requires: []string{"cooperativeMatrix", "f16"}}, {Name: Base}, {Name: DA, Requires: []string{"address"}}}
	caps := func(features ...string) vk.Caps {
		c := vk.Caps{MaxStorageBufferRange: 100, Features: map[string]bool{}}
		for _, f := range features {
			c.Features[f] = true
		}
		return c
	}
	all := caps("cooperativeMatrix", "bf16", "f16", "address")
	for _, c := range []struct {
		caps     vk.Caps
		want     string
		maxBytes uint64
		avoid    bool
		unfit    string
		full     string // builds whose probes fail
		got      string
		err      error
		says     string
	}{
		{caps: all, got: CMB},
		{caps: all, unfit: CMB, got: CM},
		{caps: all, avoid: true, got: Base},
		{caps: all, avoid: true, want: CM, got: CM},
		{caps: all, avoid: true, maxBytes: 101, got: DA},
		{caps: all, unfit: "cmb cm", got: Base},
		{caps: all, unfit: "cmb cm", maxBytes: 100, got: Base},
		{caps: all, unfit: "cmb cm", maxBytes: 101, got: DA},
		{caps: all, unfit: "cmb cm base da", err: errUnfit, says: "pkg: op: variant da: "},
		{caps: all, full: CMB, err: errFull, says: "pkg: op: variant cmb: "},
		{caps: caps("cooperativeMatrix", "f16"), got: CM},
		{caps: caps(), got: Base},
		{caps: caps(), maxBytes: 101, err: vk.ErrMissingFeature, says: "op: variant cmb"},
		{caps: all, want: DA, got: DA},
		{caps: all, want: CM, unfit: CM, err: errUnfit, says: "pkg: op: variant cm: "},
		{caps: all, want: Base, maxBytes: 101, err: vk.ErrArgument, says: "pkg: op: Variant"},
		{caps: caps(), want: CM, err: vk.ErrMissingFeature, says: "op: variant cm "},
		{caps: all, want: "none", err: vk.ErrArgument, says: "none"},
	} {
		tune, a := &tuning.Profile{Device: tuning.Device{AvoidMatrices: c.avoid}}, &vk.Adapter{Name: "a device", Caps: c.caps}
		got, err := Package("pkg").ChooseFit(tune, a, "op", ladder, c.want, c.maxBytes, func(v string) error {
			if slices.Contains(strings.Fields(c.unfit), v) {
				return errUnfit
			}
			if v == c.full {
				return errFull
			}
			return nil
		})
		assert.False(t, got != c.got || !errors.Is(err, c.err) ||
			err != nil && !strings.Contains(err.Error(), c.says),
			"%s for %d bytes, not %q: %q, %v", c.want, c.maxBytes, c.unfit, got, err)
	}
}

var (
	errUnfit = fmt.Errorf("%w: does not fit", vk.ErrMissingFeature)
	errFull  = errors.New("memory is out")
)

// The largest shape of the element that suits, and an error that lists the others.
func TestFitMatrix(t *testing.T) {
	h100 := knowncaps.Matrix["H100"]
	most := func(limit uint32) func(vk.CoopMatShape) (uint32, bool) {
		return func(s vk.CoopMatShape) (uint32, bool) { n := s.M * s.N * s.K; return n, n <= limit }
	}
	for limit, want := range map[uint32]uint32{1 << 20: 4096, 4095: 2048, 2047: 1024} {
		n, err := FitMatrix(&h100, "f16", most(limit))
		assert.NoError(t, err, "up to %d", limit)
		assert.Equal(t, want, n, "up to %d", limit)
	}
	_, err := FitMatrix(&h100, "f16", most(1))
	require.ErrorIs(t, err, vk.ErrMissingFeature, "no shape")
	assert.Contains(t, err.Error(), "[16x16x16 16x8x16 16x8x8]", "no shape")
}

// Constants count only where the lanes' components are as many as their shares.
func TestLayoutWords(t *testing.T) {
	const m, n, k, subgroup = 16, 8, 16, 32
	words := make([]uint32, m*k+k*n+m*n)
	for i := range words {
		words[i] = uint32(i)
	}
	for _, c := range []struct {
		name    string
		lengths []uint32
		ok      bool
	}{
		{"shares", []uint32{8, 4, 4}, true},
		{"A twice", []uint32{16, 4, 4}, false},
		{"B twice", []uint32{8, 8, 4}, false},
		{"C in halves", []uint32{8, 4, 2}, false},
		{"nothing written", []uint32{1<<32 - 1, 1<<32 - 1, 1<<32 - 1}, false},
		{"zeros", []uint32{0, 0, 0}, false},
	} {
		got := layoutWords(m, n, k, subgroup, append(slices.Clone(words), c.lengths...))
		assert.False(t, c.ok && !slices.Equal(got, words) || !c.ok && got != nil, "%s: %v", c.name, got)
	}
	assert.Nil(t, layoutWords(4, 4, 4, 32, make([]uint32, 51)), "less than one for each lane")
}
