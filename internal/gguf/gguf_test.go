package gguf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/lab/fakegguf"
	"github.com/vkmla/vkmla/internal/lab/testkit"
)

// keys are of every kind that models have.
var keys = []fakegguf.Key{
	{Name: "general.architecture", Value: "deepseek4"}, {Name: "a.count", Value: uint32(43)},
	{Name: "a.eps", Value: float32(0.5)}, {Name: "a.norm", Value: true}, {Name: "a.ratios", Value: []int32{0, 4, 128}},
	{Name: "a.tokens", Value: []string{"a", "", "bc"}}, {Name: "a.huge", Value: uint64(1 << 63)},
}

// tensors are a row of each of some formats.
func tensors() []fakegguf.Tensor {
	return []fakegguf.Tensor{
		{Name: "one", Format: "F32", Shape: []int{3}, Data: make([]byte, 12)},
		{Name: "two", Format: "Q8_0", Shape: []int{3, 64}, Data: make([]byte, 3*68)},
		{Name: "three", Format: "Q4_K", Shape: []int{2, 2, 256}, Data: make([]byte, 4*144)},
	}
}

func write(t *testing.T, data []byte) string {
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(path, data, 0o666))
	return path
}

func TestOpen(t *testing.T) {
	for _, align := range []uint32{32, 1, 4096} {
		list := tensors()
		for i := range list {
			list[i].Data[0] = byte(i + 1)
		}
		k := append(slices.Clone(keys), fakegguf.Key{Name: "general.alignment", Value: align})
		m, err := gguf.Open(write(t, fakegguf.Encode(k, list)))
		require.NoError(t, err)
		assert.Equal(t, []string{"one", "three", "two"}, m.Names())
		for i, want := range list {
			got, ok := m.Tensor(want.Name)
			require.True(t, ok)
			assert.Equal(t, want.Shape, got.Shape)
			assert.Equal(t, want.Format, got.Format.Name)
			assert.Equal(t, want.Data, got.Data)
			assert.Equal(t, byte(i+1), got.Data[0])
		}
		_, ok := m.Tensor("four")
		assert.False(t, ok)

		n, ok := m.Keys["a.count"].Int()
		assert.True(t, ok && n == 43)
		_, ok = m.Keys["a.huge"].Int()
		assert.False(t, ok)
		x, ok := m.Keys["a.eps"].Float()
		assert.True(t, ok && x == 0.5)
		b, ok := m.Keys["a.norm"].Bool()
		assert.True(t, ok && b)
		s, ok := m.Keys["general.architecture"].Text()
		assert.True(t, ok && s == "deepseek4")
		_, ok = m.Keys["a.eps"].Text()
		assert.False(t, ok)
		var ratios []int64
		for _, v := range m.Keys["a.ratios"].All() {
			n, _ := v.Int()
			ratios = append(ratios, n)
		}
		assert.Equal(t, []int64{0, 4, 128}, ratios)
		var tokens []string
		for _, v := range m.Keys["a.tokens"].All() {
			s, _ := v.Text()
			tokens = append(tokens, s)
		}
		assert.Equal(t, []string{"a", "", "bc"}, tokens)
		assert.Equal(t, "array of 3 string", m.Keys["a.tokens"].String())
		_, ok = m.Keys["a.none"].Int()
		assert.False(t, ok)
		assert.Equal(t, "absent", m.Keys["a.none"].String())
		assert.NoError(t, errors.Join(m.Close(), m.Close()))
	}
	m, err := gguf.Open(write(t, nested(4)))
	require.NoError(t, err)
	require.NoError(t, m.Close())
	_, err = gguf.Open(t.TempDir())
	assert.ErrorIs(t, err, fs.ErrInvalid)
	_, err = gguf.Open(filepath.Join(t.TempDir(), "absent"))
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

// parts writes a model in parts and returns the first one's path. change may alter a part's keys.
func parts(t *testing.T, n int, change func(i int, k []fakegguf.Key) []fakegguf.Key, per ...[]fakegguf.Tensor) string {
	dir, all := t.TempDir(), 0
	for _, list := range per {
		all += len(list)
	}
	for i, list := range per {
		k := []fakegguf.Key{{Name: "split.no", Value: uint16(i)}, {Name: "split.count", Value: uint16(n)},
			{Name: "split.tensors.count", Value: int32(all)}}
		if i == 0 {
			k = append(k, keys...)
		}
		if change != nil {
			k = change(i, k)
		}
		name := fmt.Sprintf("m-%05d-of-%05d.gguf", i+1, n)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), fakegguf.Encode(k, list), 0o666))
	}
	return filepath.Join(dir, fmt.Sprintf("m-00001-of-%05d.gguf", n))
}

func TestParts(t *testing.T) {
	list := tensors()
	path := parts(t, 3, nil, nil, list[:1], list[1:])
	m, err := gguf.Open(path)
	require.NoError(t, err)
	assert.Equal(t, []string{"one", "three", "two"}, m.Names())
	two, _ := m.Tensor("two")
	assert.Equal(t, "m-00003-of-00003.gguf", two.File)
	assert.Contains(t, m.Keys, "a.count")
	require.NoError(t, m.Close())

	set := func(part int, name string, value any) func(int, []fakegguf.Key) []fakegguf.Key {
		return func(i int, k []fakegguf.Key) []fakegguf.Key {
			at := slices.IndexFunc(k, func(k fakegguf.Key) bool { return k.Name == name })
			if i == part && value == nil {
				return slices.Delete(k, at, at+1)
			}
			if i == part {
				k[at].Value = value
			}
			return k
		}
	}
	for want, path := range map[string]string{
		"split.no is 0, want 1":           parts(t, 2, set(1, "split.no", uint16(0)), list[:1], list[1:]),
		"split.count is 3, and 2":         parts(t, 2, set(1, "split.count", uint16(3)), list[:1], list[1:]),
		"split.count is 1, and 2":         parts(t, 2, set(1, "split.count", nil), list[:1], list[1:]),
		"split.count is absent, want 2":   parts(t, 2, set(0, "split.count", nil), list[:1], list[1:]),
		"split.tensors.count is absent":   parts(t, 2, set(0, "split.tensors.count", nil), list[:1], list[1:]),
		"have 3 tensors, want the 4":      parts(t, 2, set(0, "split.tensors.count", int32(4)), list[:1], list[1:]),
		"this is part 2 of 2; open the":   parts(t, 2, set(0, "split.no", uint16(1)), list[:1], list[1:]),
		"want at most 4096":               parts(t, 2, set(0, "split.count", uint16(60000)), list[:1], list[1:]),
		"has to be called NAME-00001-of":  parts(t, 2, set(0, "split.count", uint16(9)), list[:1], list[1:]),
		"want a number of parts":          parts(t, 2, set(0, "split.count", "2"), list[:1], list[1:]),
		"the tensor one is in m-00001-of": parts(t, 2, nil, list[:1], list[:1]),
	} {
		_, err := gguf.Open(path)
		assert.ErrorIs(t, err, gguf.ErrFormat, want)
		assert.ErrorContains(t, err, want)
	}
	for n, count := range map[int]any{1: nil, 2: uint16(0)} { // alone, or whole again
		m, err := gguf.Open(parts(t, n, set(0, "split.count", count), list))
		require.NoError(t, err)
		require.NoError(t, m.Close())
	}
	_, err = gguf.Open(parts(t, 3, nil, list[:1], list[1:]))
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, "part 3 of 3 is absent")
}

// replaced is a file with the first bytes that equal old made other ones.
func replaced(file, old, other []byte) []byte {
	at := bytes.Index(file, old)
	if at < 0 {
		panic("the file does not have what is to be replaced")
	}
	return slices.Concat(file[:at], other, file[at+len(old):])
}

func number(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

func text(s string) []byte { return append(number(uint64(len(s))), s...) }

func TestRefused(t *testing.T) {
	file := fakegguf.Encode(keys, tensors())
	word := func(at int, v uint64, size int) []byte {
		return slices.Concat(file[:at], number(v)[:size], file[at+size:])
	}
	behind := func(name string, skip int, v uint64, size int) []byte {
		return word(bytes.Index(file, text(name))+8+len(name)+skip, v, size)
	}
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"magic":             {word(0, 0, 4), "does not begin with GGUF"},
		"version 4":         {word(4, 4, 4), "version 4, want 3"},
		"tensors":           {word(8, 1<<40, 8), "tensors in"},
		"more tensors":      {word(8, 4, 8), "malformed"},
		"keys":              {word(16, 1<<60, 8), "keys in"},
		"a key twice":       {replaced(file, text("a.norm"), text("a.eps")), "a.eps is there twice"},
		"a tensor twice":    {replaced(file, text("two"), text("one")), "one is there twice"},
		"a long name":       {behind("a.count", -15, 1<<50, 8), "ends at"},
		"an unknown kind":   {behind("a.count", 0, 13, 4), "the type 13"},
		"a long text":       {behind("general.architecture", 4, 1<<62, 8), "ends at"},
		"a bool":            {behind("a.norm", 4, 2, 1), "a bool is 2"},
		"a long list":       {behind("a.ratios", 8, 1<<61, 8), "an array of"},
		"a list of nothing": {behind("a.ratios", 4, 77, 4), "the type 77"},
		"lists in lists":    {nested(5), "arrays inside each other"},
		"unprintable":       {replaced(file, text("a.eps"), text("a.\x1bps")), "unprintable"},
		"no text":           {replaced(file, text("a.eps"), text("a.\xffps")), "unprintable"},
		"dimensions":        {behind("two", 0, 5, 4), "5 dimensions"},
		"no dimension":      {behind("two", 0, 0, 4), "0 dimensions"},
		"an empty one":      {behind("two", 12, 0, 8), "a dimension of 0"},
		"a large one":       {behind("two", 12, 1<<34, 8), "needs"},
		"too large":         {behind("two", 12, 1<<63, 8), "a dimension of"},
		"no whole block":    {behind("two", 4, 65, 8), "no whole number of blocks"},
		"at no place":       {behind("two", 24, 33, 8), "a multiple of 32"},
		"far away":          {behind("two", 24, 1<<63, 8), "needs"},
		"in another":        {behind("three", 32, 0, 8), "inside"},
		"alignment of 3":    {fakegguf.Encode([]fakegguf.Key{{Name: "general.alignment", Value: uint32(3)}}, nil), "a power of two"},
		"alignment, huge":   {fakegguf.Encode([]fakegguf.Key{{Name: "general.alignment", Value: uint32(1 << 30)}}, nil), "a power of two"},
		"alignment, text":   {fakegguf.Encode([]fakegguf.Key{{Name: "general.alignment2", Value: "a"}}, nil)[:23], "23 bytes"},
	} {
		_, err := gguf.Open(write(t, c.file))
		assert.ErrorIs(t, err, gguf.ErrFormat, name)
		assert.ErrorContains(t, err, c.want, name)
	}
	for what, data := range map[string][]byte{
		"GGUF of version 1": word(4, 1, 4), "GGUF of version 2": word(4, 2, 4), "GGUF of big-endian numbers": word(4, 3<<24, 4),
		"a tensor of type 42": behind("two", 20, 42, 4), "a tensor of type 99": behind("two", 20, 99, 4),
	} {
		_, err := gguf.Open(write(t, data))
		var foreign *gguf.ForeignError
		require.ErrorAs(t, err, &foreign, what)
		assert.Equal(t, what, foreign.What)
	}
}

// nested is a file whose one value is an array in others.
func nested(depth int) []byte {
	file := fakegguf.Encode([]fakegguf.Key{{Name: "a", Value: uint32(9)}}, nil)
	file = slices.Concat(file[:len(file)-8], word32(9)) // an array, whose elements follow
	for range depth - 1 {
		file = slices.Concat(file, word32(9), number(1))
	}
	return slices.Concat(file, word32(0), number(0))
}

func word32(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }

// A file cut anywhere is refused, or lacks what nothing needs.
func TestCut(t *testing.T) {
	file := fakegguf.Encode(keys, tensors())
	path := write(t, nil)
	for n := range file {
		require.NoError(t, os.WriteFile(path, file[:n], 0o666))
		_, err := gguf.Open(path)
		require.ErrorIs(t, err, gguf.ErrFormat, "%d of %d bytes", n, len(file))
	}
}

// A file that becomes shorter while it is mapped is an error.
func TestShrinks(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a mapped file cannot become shorter")
	}
	list := tensors()
	list[2] = fakegguf.Tensor{Name: "three", Format: "F32", Shape: []int{1 << 16}, Data: make([]byte, 4<<16)}
	path := write(t, fakegguf.Encode(keys, list))
	m, err := gguf.Open(path)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, 1000))
	three, _ := m.Tensor("three")
	err = gguf.Guard(func() error {
		x := make([]float32, 1<<16)
		three.Format.Decode(x, three.Data)
		return nil
	})
	assert.ErrorIs(t, err, gguf.ErrFormat)
	assert.NoError(t, m.Close())
}

// FuzzOpen reads everything that a file has.
func FuzzOpen(f *testing.F) {
	f.Add(fakegguf.Encode(keys, tensors()))
	f.Add(fakegguf.Encode(keys[:2], tensors()[:1]))
	f.Add(fakegguf.Encode([]fakegguf.Key{{Name: "general.alignment", Value: uint32(1)}, {Name: "split.no", Value: uint16(0)}}, nil))
	path := filepath.Join(testkit.MemoryDir(f), "f.gguf")
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, os.WriteFile(path, data, 0o666))
		m, err := gguf.Open(path)
		if err != nil {
			var foreign *gguf.ForeignError
			if !errors.Is(err, gguf.ErrFormat) && !errors.As(err, &foreign) && !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		for _, v := range m.Keys {
			readAll(v)
		}
		for _, name := range m.Names() {
			x, _ := m.Tensor(name)
			if n := len(x.Data) / x.Format.Bytes * x.Format.Values; x.Format.Decodes() {
				x.Format.Decode(make([]float32, n), x.Data)
			}
		}
		require.NoError(t, m.Close())
	})
}

func readAll(v gguf.Value) {
	v.Int()
	v.Float()
	v.Bool()
	v.Text()
	for _, e := range v.All() {
		readAll(e)
	}
}
