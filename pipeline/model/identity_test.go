package model_test

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/pipeline/model"
)

// identities are those of a model's layers.
func identities(t *testing.T, m *fakemodel.Model, shards int, o model.CheckpointOptions) (list []model.Identity) {
	t.Helper()
	c, err := openFake(t, m, shards, o)
	require.NoError(t, err)
	for i := range c.Layers {
		list = append(list, must[model.Identity](t)(c.Layers[i].Identity()))
	}
	return list
}

// identityRef is Identity of the tensors of a layer as a model with released names has them.
func identityRef(m *fakemodel.Model, layer int) model.Identity {
	tensors, prefix := map[string]*fakemodel.Tensor{}, fmt.Sprintf("layers.%d.attn.", layer)
	for _, x := range m.Tensors {
		if name, ok := strings.CutPrefix(x.Name, prefix); ok {
			tensors[name] = x
		}
	}
	var all strings.Builder
	all.WriteString("vkmla weights 1\n")
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		x := tensors[name]
		fmt.Fprintf(&all, "\"%s\" %s", name, x.DType)
		for _, n := range x.Shape {
			fmt.Fprintf(&all, " %d", n)
		}
		all.WriteByte('\n')
		if n := len(x.Data); n > 65536 {
			for i := range 16 {
				at := (n - 4096) * i / 15
				all.Write(x.Data[at : at+4096])
			}
			continue
		}
		all.Write(x.Data)
	}
	return sha256.Sum256([]byte(all.String()))
}

// TestIdentity holds what identities see, what they do not, and that they stay what they are:
// snapshots have them.
func TestIdentity(t *testing.T) {
	whole := model.CheckpointOptions{}
	cfg := fakemodel.Config(1, 4)
	cfg.Hidden, cfg.Heads, cfg.QRank = 64, 2, 64 // small, and some tensors are of more than 64 KiB
	plain := fake(t, fakemodel.Options{Config: cfg})
	want := identities(t, plain, 1, whole)
	seen := map[model.Identity]bool{{}: true}
	for i, id := range want {
		assert.Equal(t, identityRef(plain, i), id)
		assert.False(t, seen[id])
		seen[id] = true
	}
	for i, naming := range fakemodel.Namings() {
		m := fake(t, fakemodel.Options{Config: cfg, Naming: naming})
		assert.Equal(t, want, identities(t, m, 1+i%3, whole), "%d", naming)
	}
	assert.Equal(t, want, identities(t, plain, 1, model.CheckpointOptions{Rank: 1, Ranks: 2}), "of a rank")
	assert.Equal(t, want[1:2], identities(t, plain, 1, model.CheckpointOptions{Layers: []int{1}}))
	other := func(o fakemodel.Options) {
		o.Config = cfg
		for i, id := range identities(t, fake(t, o), 1, whole) {
			assert.False(t, seen[id], "layer %d of %+v", i, o)
			seen[id] = true
		}
	}
	other(fakemodel.Options{Seed: 1})
	for _, s := range fakemodel.Storages()[1:] {
		other(fakemodel.Options{Storage: s})
	}
	none, err := (&model.LayerWeights{}).Identity()
	assert.NoError(t, err)
	assert.Equal(t, model.Identity{}, none)
}

// TestIdentityBytes changes single bytes: each of a small tensor counts, and those of a large one's
// spans.
func TestIdentityBytes(t *testing.T) {
	m := fake(t, fakemodel.Options{Config: fakemodel.Config(1), Storage: fakemodel.FP8})
	of := func() model.Identity { return identities(t, m, 1, model.CheckpointOptions{})[0] }
	want := of()
	change := func(x *fakemodel.Tensor, at int, counts bool) {
		t.Helper()
		x.Data[at] ^= 1
		assert.Equal(t, counts, of() != want, "%s: byte %d of %d", x.Name, at, len(x.Data))
		x.Data[at] ^= 1
	}
	large := 0
	for _, x := range m.Tensors {
		n := len(x.Data)
		if strings.HasPrefix(x.Name, "layers.") {
			change(x, 0, true)
			change(x, n-1, true)
		} else {
			change(x, 0, false) // not of attention
		}
		if n > 2*65536 {
			large++
			change(x, (n-4096)/15, true)
			change(x, (n-4096)/15+4095, true)
			change(x, 4096, false)
			change(x, n-4097, false)
		}
	}
	assert.Positive(t, large)
}
