package verify_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// TestFar has operations reach pages on both sides of what a descriptor holds: each picks a variant
// that does, whose results are right. Base refuses such a pool before anything is recorded. Cases
// are the same each time: TestOp takes new ones.
func TestFar(t *testing.T) {
	dev := testkit.Device(t)
	limit := dev.Caps().MaxStorageBufferRange
	if limit > dev.Caps().HeapBytes/4 || limit > 1<<33 {
		t.Skipf("a descriptor holds %d bytes of %d", limit, dev.Caps().HeapBytes)
	}
	tried := 0
	for _, op := range verify.All() {
		if op.Bind == nil {
			continue
		}
		t.Run(op.Name, func(t *testing.T) {
			for i, c := range op.RandomCases(1) {
				if i == 10 || !far(t, dev, op, c, limit) {
					return
				}
				tried++
			}
		})
	}
	assert.Greater(t, tried, 10, "cases with pools")
}

// far tries a case, and reports whether it has a pool.
func far(t *testing.T, dev *vk.Device, op verify.Op, c verify.Case, limit uint64) bool {
	run := func(variant string, bytes uint64) (got verify.Arrays, has bool, err error) {
		bound, err := op.Bind(verify.Build{Dev: dev, Variant: variant, MaxBytes: bytes}, c)
		if err != nil {
			return nil, false, err
		}
		r := verify.NewFarRig(t.Context(), dev, limit)
		defer r.Close()
		l := bound.Place(r)
		require.NoError(t, r.Err())
		r.Do(l.Record)
		got, err = r.Results(l.Out)
		return got, r.Far(), err
	}
	got, has, err := run("", limit+1<<24)
	if errors.Is(err, vk.ErrMissingFeature) {
		t.Skip(err)
	}
	if !has {
		return false
	}
	require.NoError(t, err, c.Name)
	if op.After != nil {
		got, err = op.After(c, "", got)
		require.NoError(t, err)
	}
	want, err := op.Ref(c)
	require.NoError(t, err)
	result := op.Compare(c, got, want)
	assert.True(t, result.Pass, "%s: %s", c.Name, result.Detail)
	_, _, err = run(opkit.Base, 0)
	require.ErrorIs(t, err, vk.ErrArgument, "%s: base", c.Name)
	assert.ErrorContains(t, err, "give MaxBytes", "%s: base", c.Name)
	return true
}
