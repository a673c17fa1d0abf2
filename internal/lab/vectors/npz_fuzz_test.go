package vectors

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Any bytes are an archive whose arrays have the bytes that their shapes need, or an error that
// wraps ErrFormat.
func FuzzArchive(f *testing.F) {
	var b bytes.Buffer
	w := NewArchiveWriter(&b)
	require.NoError(f, w.Add("a", FromI32([]int32{1, 2, 3}, 3)))
	require.NoError(f, w.Add("b.c", FromU8([]byte{1, 2}, 2, 1)))
	require.NoError(f, w.Close())
	f.Add(b.Bytes())
	f.Add(zipped(f, "a.npy", string(npy("<f4", "2, 2", make([]byte, 16)))))
	f.Add(zipped(f, "a.npy", "", "a.npy", "x", "x/y.npy", ""))
	f.Fuzz(func(t *testing.T, data []byte) {
		z, err := readZip(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		a, err := newArchive("f", archive{z, nil, int64(len(data))})
		if err != nil {
			assert.ErrorIs(t, err, ErrFormat)
			return
		}
		for _, name := range a.Names() {
			head, err := a.Head(name)
			if err != nil {
				assert.ErrorIs(t, err, ErrFormat)
			}
			arr, err := a.Array(name)
			if err != nil {
				assert.ErrorIs(t, err, ErrFormat)
				continue
			}
			assert.Equal(t, head.Shape, arr.Shape)
			assert.Len(t, arr.Data, arr.Len()*arr.Type.Size())
		}
	})
}
