package prefix

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/pipeline"
)

// FuzzObject alters objects: exactly those are read that were packed under that name, with that
// key, from as many bytes.
func FuzzObject(f *testing.F) {
	for _, size := range []int{0, 1, 100} {
		n := newNamer([]byte("k"), pipeline.Fingerprint{})
		good := n.pack(n.seed, bytes.Repeat([]byte{7}, size))
		f.Add([]byte("k"), []byte{}, good, size, uint32(0), byte(0), false)
		f.Add([]byte("k"), []byte{}, good, size, uint32(len(good)-1), byte(1), true)
		f.Add([]byte("k"), []byte{}, good[:len(good)-1], size, uint32(0), byte(0), false)
		f.Add([]byte("k"), []byte("k"), good, size, uint32(20), byte(1), true)
		f.Add([]byte{}, []byte{}, append(good, 0), size, uint32(0), byte(0), true)
	}
	f.Add([]byte{}, []byte{}, []byte("0"), -47, uint32(0), byte(0), true)
	f.Fuzz(func(t *testing.T, key, name, data []byte, size int, at uint32, flip byte, sealed bool) {
		n := newNamer(key, pipeline.Fingerprint{})
		of := n.sum(name)
		if len(data) > 0 {
			data = bytes.Clone(data)
			data[int(at)%len(data)] ^= flip
		}
		if sealed { // by who knows the key
			h := hmac.New(sha256.New, key)
			h.Write(data)
			data = h.Sum(data)
		}
		content, err := n.unpack(of, data, size)
		if err != nil {
			require.ErrorIs(t, err, ErrDamaged)
			good := size >= 0 && size <= len(data)-overhead && bytes.Equal(data, n.pack(of, data[48:48+size]))
			require.False(t, good, "%v", err)
			return
		}
		require.Len(t, content, size)
		require.True(t, bytes.Equal(data, n.pack(of, content)), "taken for what was never packed")
	})
}

// TestNames holds names as they are in stores: a change loses all that was kept.
func TestNames(t *testing.T) {
	tokens := make([]int32, 300)
	for i := range tokens {
		tokens[i] = int32(i * 7)
	}
	n := newNamer(nil, pipeline.Fingerprint{Config: [32]byte{1}, Weights: [32]byte{2}, Formats: [32]byte{3}})
	c := n.chain(tokens)
	require.Len(t, c.at, 3)

	// Written out from the description: a chain of HMACs over blocks.
	sum := func(parts ...[]byte) []byte {
		h := hmac.New(sha256.New, nil)
		h.Write(bytes.Join(parts, nil))
		return h.Sum(nil)
	}
	number := func(from, to int) (data []byte) {
		for i := from; i < to; i++ {
			data = append(data, byte(i*7), byte(i*7>>8), 0, 0)
		}
		return data
	}
	one, two, three := [32]byte{1}, [32]byte{2}, [32]byte{3}
	h := sum([]byte("vkmla prefix 1\n\x00"), one[:], two[:], three[:])
	for i := range 2 {
		h = sum(h, number(i*128, i*128+128))
		assert.Equal(t, hex.EncodeToString(sum([]byte("span"), h)), c.span(i).String())
		assert.Equal(t, hex.EncodeToString(sum([]byte("state"), h)), c.state(i*128+128).String())
	}
	assert.Equal(t, hex.EncodeToString(sum([]byte("state"), h, number(256, 299))), c.state(299).String())

	seen := map[digest]bool{}
	for length := 1; length <= 300; length++ {
		for _, k := range []*namer{n, newNamer([]byte("key"), pipeline.Fingerprint{}), newNamer(nil, pipeline.Fingerprint{})} {
			name := k.chain(tokens).state(length)
			assert.False(t, seen[name], "%d tokens", length)
			seen[name] = true
		}
	}
}
