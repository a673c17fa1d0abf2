package vectors

import (
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/files"
)

func TestArchive(t *testing.T) {
	want := Arrays{
		"L0.in": FromF32([]float32{1, -2, 3.5, 4, 5, 6}, 2, 3), "L1.topk": FromI32([]int32{7, -1}, 2), "scalar": FromI64([]int64{-9}),
		"bytes": FromU8([]byte{1, 2, 3}, 3, 1), "empty": New(F64, 0, 4), "half": FromBF16([]float32{0.5}, 1),
	}
	for t, d := range types {
		if d.size > 0 {
			want["type."+t.String()] = Filled(3, t, 1, 2)
		}
	}
	write := func() []byte {
		var b bytes.Buffer
		w := NewArchiveWriter(&b)
		for _, name := range slices.Sorted(maps.Keys(want)) {
			require.NoError(t, w.Add(name, want[name]))
		}
		require.NoError(t, w.Close())
		return b.Bytes()
	}
	data := write()
	assert.True(t, bytes.Equal(data, write()), "equal arrays gave different files")
	path := filepath.Join(t.TempDir(), "a.npz")
	require.NoError(t, os.WriteFile(path, data, 0o666))
	a, err := OpenArchive(path)
	require.NoError(t, err)
	defer a.Close()
	require.Len(t, a.Names(), len(want))
	assert.True(t, slices.IsSorted(a.Names()))
	for name, w := range want {
		got, err := a.Array(name)
		require.NoError(t, err, "%s: %v, want %v", name, got, w)
		assert.True(t, got.Type == w.Type && shapeString(got.Shape) == shapeString(w.Shape) &&
			bytes.Equal(got.Data, w.Data) && a.Has(name), "%s: %v, want %v", name, got, w)
	}
	_, err = a.Array("none")
	require.ErrorIs(t, err, ErrFormat)
	assert.False(t, a.Has("none"))
}

// The header is the one that NumPy writes, byte for byte.
func TestNpyHeader(t *testing.T) {
	for _, c := range []struct {
		a    Array
		want string
	}{
		{New(F32, 2, 3), "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"},
		{New(U8, 5), "{'descr': '|u1', 'fortran_order': False, 'shape': (5,), }"},
		{New(I64), "{'descr': '<i8', 'fortran_order': False, 'shape': (), }"},
	} {
		h := npyHeader(c.a)
		assert.True(t, strings.TrimRight(string(h[10:]), " \n") == c.want && len(h)%64 == 0 &&
			h[len(h)-1] == '\n' && int(h[8])+int(h[9])<<8 == len(h)-10, "%q, want %q", h, c.want)
		got, err := readNpyHeader(bytes.NewReader(h))
		assert.NoError(t, err)
		assert.Equal(t, npyHead{t: c.a.Type, shape: append([]int{}, c.a.Shape...)}, got)
	}
}

// NumPy's savez keeps the order that an array has in memory.
func TestArchiveOfColumns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.npz")
	f, err := os.Create(path)
	require.NoError(t, err)
	z := zip.NewWriter(f)
	for name, data := range map[string][]byte{ // [2, 3, 2], counted in the order of columns; one of one dimension
		"a.npy": npy("<i2", "2, 3, 2", []byte{0, 0, 6, 0, 2, 0, 8, 0, 4, 0, 10, 0, 1, 0, 7, 0, 3, 0, 9, 0, 5, 0, 11, 0}), "b.npy": npy("|u1", "2,", []byte{1, 2}),
	} {
		w, err := z.Create(name)
		require.NoError(t, err)
		w.Write(bytes.Replace(data, []byte("False"), []byte("True "), 1))
	}
	require.NoError(t, errors.Join(z.Close(), f.Close()))
	a, err := OpenArchive(path)
	require.NoError(t, err)
	defer a.Close()
	x, err := a.Array("a")
	require.NoError(t, err, "%v", x)
	require.Equal(t, "int16 [2, 3, 2]", x.String(), "%v", x)
	for i, v := range x.Float64s() {
		if v != float64(i) {
			t.Fatalf("%v", x.Float64s())
		}
	}
	x, err = a.Array("b")
	assert.NoError(t, err, "%v", x)
	assert.Equal(t, []byte{1, 2}, x.Data, "%v", x)
}

// zipped returns an archive of members, a name and content each.
func zipped(t testing.TB, members ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := 0; i < len(members); i += 2 {
		f, err := z.Create(members[i])
		require.NoError(t, err)
		io.WriteString(f, members[i+1])
	}
	require.NoError(t, z.Close())
	return b.Bytes()
}

func TestArchiveRefuses(t *testing.T) {
	w := NewArchiveWriter(io.Discard)
	for name, a := range map[string]Array{
		"a/b": FromU8(nil, 0), "": FromU8(nil, 0), "short": {Type: F32, Shape: []int{2}, Data: make([]byte, 7)},
		"negative": {Type: F32, Shape: []int{-1}}, "typeless": {Shape: []int{0}}, "large": {Type: U8, Shape: []int{1 << 40}},
	} {
		assert.ErrorIs(t, w.Add(name, a), ErrFormat, "%q", name)
	}
	assert.NoError(t, errors.Join(w.Add("a", FromU8(nil, 0)), w.Add("b", FromU8(nil, 0))))
	assert.ErrorIs(t, w.Add("a", FromU8(nil, 0)), ErrFormat)
	_, err := OpenArchive(filepath.Join(t.TempDir(), "none"))
	assert.ErrorIs(t, err, fs.ErrNotExist)
	open := func(members ...string) (*Archive, error) {
		path := filepath.Join(t.TempDir(), "a.npz")
		require.NoError(t, os.WriteFile(path, zipped(t, members...), 0o666))
		return OpenArchive(path)
	}
	ok := string(npy("|u1", "2,", []byte{1, 2}))
	for name, members := range map[string][]string{"another file": {"a.txt", ""}, "twice": {"a.npy", ok, "a.npy", ok}, "a path": {"x/a.npy", ok}} {
		_, err := open(members...)
		assert.ErrorIs(t, err, ErrFormat, name)
	}
	for name, data := range map[string]string{"empty": "", "short": ok[:len(ok)-1], "long": ok + "x",
		"huge": string(npy("<f8", "1048576, 1048576", nil)), "negative": string(npy("<f8", "-1,", nil))} {
		a, err := open("a.npy", data)
		require.NoError(t, err)
		x, err := a.Array("a")
		assert.ErrorIs(t, err, ErrFormat, "%s: %v", name, x)
		a.Close()
	}
	path := filepath.Join(t.TempDir(), "a.npz")
	require.NoError(t, os.WriteFile(path, []byte("PK"), 0o666))
	_, err = OpenArchive(path)
	assert.ErrorIs(t, err, ErrFormat)
}

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
		a, err := ReadArchive("f", data)
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

// A pointer of Git LFS in place of an archive is called that.
func TestArchivePointer(t *testing.T) {
	_, err := ReadArchive("x.npz", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"))
	assert.ErrorIs(t, err, ErrFormat)
	assert.ErrorContains(t, err, files.PointerWhat)
}
