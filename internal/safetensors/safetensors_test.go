package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
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

	st "github.com/vkmla/vkmla/internal/safetensors"
)

// file puts a header and n bytes of data together.
func file(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for i := range n {
		b = append(b, byte(i))
	}
	return b
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, data, 0o666))
}

func encode(t testing.TB, tensors ...st.Tensor) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, st.Write(&b, tensors...))
	return b.Bytes()
}

func TestParse(t *testing.T) {
	// In the header's order, which need not be that of the data.
	f := file(`{"__metadata__":{"a":"b"}, "x.weight":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
		"s":{"data_offsets":[0,4],"dtype":"F32","shape":[]},"none":{"dtype":"I64","shape":[4,0],"data_offsets":[16,16]},
		"four":{"dtype":"F4","shape":[3,2],"data_offsets":[16,19]}}   `, 19)
	all, err := st.Parse(f)
	require.NoError(t, err)
	for name, want := range map[string]string{
		"x.weight": "BF16 [2, 3] 0405060708090a0b0c0d0e0f", "s": "F32 [] 00010203", "none": "I64 [4, 0] ", "four": "F4 [3, 2] 101112"} {
		x := all[name]
		require.Equal(t, name, x.Name, "%v %x", x, x.Data)
		require.Equal(t, want, fmt.Sprintf("%v %x", x, x.Data), "%v %x", x, x.Data)
		assert.Equal(t, len(x.Data), cap(x.Data), "%v %x", x, x.Data)
	}
	assert.Len(t, all, 4, "tensors")
	all, err = st.Parse(file("{}", 0))
	assert.NoError(t, err)
	assert.Empty(t, all)
}

func TestParseRefuses(t *testing.T) {
	one := func(dtype, shape, offsets string) string {
		return fmt.Sprintf(`{"x":{"dtype":%q,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
	}
	two := func(a, b string) string {
		return fmt.Sprintf(`{"x":{"dtype":"U8","shape":[4],"data_offsets":%s},"y":{"dtype":"U8","shape":[4],"data_offsets":%s}}`, a, b)
	}
	for name, f := range map[string][]byte{
		"empty":                 {},
		"short":                 {1, 0, 0, 0, 0, 0, 0},
		"header behind the end": binary.LittleEndian.AppendUint64(nil, 3),
		"header too long":       append(binary.LittleEndian.AppendUint64(nil, 1<<63), make([]byte, 64)...),
		"header over the limit": append(binary.LittleEndian.AppendUint64(nil, 100_000_001), make([]byte, 64)...),
		"no header":             file("", 0),
		"not an object":         file("[]", 0),
		"null":                  file("null", 0),
		"unfinished":            file(`{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}`, 1),
		"two objects":           file("{}{}", 0),
		"trailing bytes":        file("{}\x00", 0),
		"metadata not strings":  file(`{"__metadata__":{"a":1}}`, 0),
		"twice":                 file(`{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2),
		"metadata twice":        file(`{"__metadata__":{},"__metadata__":{}}`, 0),
		"no name":               file(`{"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1),
		"control character":     file(`{"a\u001b[2J":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1),
		"long name":             file(strings.Replace(one("U8", "[1]", "[0,1]"), "x", strings.Repeat("x", 1001), 1), 1),
		"not a tensor":          file(`{"x":3}`, 0),
		"nothing said":          file(`{"x":{}}`, 0),
		"no dtype":              file(`{"x":{"shape":[1],"data_offsets":[0,1]}}`, 1),
		"no shape":              file(`{"x":{"dtype":"U8","data_offsets":[0,1]}}`, 1),
		"null shape":            file(`{"x":{"dtype":"U8","shape":null,"data_offsets":[0,1]}}`, 1),
		"no offsets":            file(`{"x":{"dtype":"U8","shape":[1]}}`, 1),
		"unknown member":        file(`{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1]}}`, 1),
		"three offsets":         file(one("U8", "[1]", "[0,1,2]"), 1),
		"unknown type":          file(one("Q4", "[1]", "[0,1]"), 1),
		"negative dimension":    file(one("U8", "[-1]", "[0,1]"), 1),
		"negatives multiply":    file(one("U8", "[-1,-1]", "[0,1]"), 1),
		"fraction":              file(one("U8", "[1.5]", "[0,1]"), 1),
		"many dimensions":       file(one("U8", "["+strings.Repeat("1,", 16)+"1]", "[0,1]"), 1),
		"wrong size":            file(one("F32", "[1]", "[0,3]"), 3),
		"half a byte":           file(one("F4", "[3]", "[0,1]"), 1),
		"overflow to 0":         file(one("F32", "[4294967296,4294967296]", "[0,0]"), 0),
		"overflow to 4":         file(one("F32", "[9223372036854775807,3]", "[0,4]"), 4),
		"beyond 64 bits":        file(one("U8", "[18446744073709551616]", "[0,0]"), 0),
		"ends before it begins": file(one("U8", "[1]", "[1,0]"), 1),
		"negative offset":       file(one("U8", "[1]", "[-1,0]"), 1),
		"huge offset":           file(one("U8", "[1]", "[9223372036854775806,9223372036854775807]"), 1),
		"past the end":          file(one("U8", "[9]", "[0,9]"), 8),
		"bytes left over":       file(one("U8", "[7]", "[0,7]"), 8),
		"gap":                   file(two("[0,4]", "[5,9]"), 9),
		"overlap":               file(two("[0,4]", "[3,7]"), 7),
		"the same bytes":        file(two("[0,4]", "[0,4]"), 4),
		"nesting":               file(`{"x":`+strings.Repeat("[", 20000)+strings.Repeat("]", 20000)+"}", 0),
	} {
		all, err := st.Parse(f)
		assert.ErrorIs(t, err, st.ErrFormat, "%s: %v", name, all)
	}
}

func TestWrite(t *testing.T) {
	data := []byte{1, 2, 3, 4, 5, 6}
	f := encode(t, st.Bytes("a", st.BF16, data, 3), st.Bytes("b", st.F8E8M0, data[:1]), st.Bytes("c", st.U8, nil, 0))
	all, err := st.Parse(f)
	require.NoError(t, err, "%v", all)
	assert.True(t, len(all) == 3 && bytes.Equal(all["a"].Data, data) && all["b"].String() == "F8_E8M0 []" &&
		all["c"].String() == "U8 [0]", "%v", all)
	assert.Equal(t, uint64(0), binary.LittleEndian.Uint64(f)%8, "data begin at %d", 8+binary.LittleEndian.Uint64(f))
	assert.ErrorIs(t, st.Write(failing{}, st.Bytes("a", st.U8, data, 6)), io.ErrClosedPipe)
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.safetensors")
	write(t, path, encode(t, st.Bytes("a", st.U8, []byte{7, 8}, 2)))
	f, err := st.OpenFile(path)
	require.NoError(t, err)
	assert.Equal(t, []byte{7, 8}, f.Tensors["a"].Data, "%v", f.Tensors["a"])
	assert.NoError(t, errors.Join(f.Close(), f.Close()))
	_, err = st.OpenFile(filepath.Join(dir, "none"))
	assert.ErrorIs(t, err, fs.ErrNotExist)
	_, err = st.OpenFile(dir)
	assert.ErrorIs(t, err, fs.ErrInvalid)
	write(t, path, nil)
	_, err = st.OpenFile(path)
	assert.ErrorIs(t, err, st.ErrFormat)
	write(t, path, file("{}", 3))
	_, err = st.OpenFile(path)
	require.ErrorIs(t, err, st.ErrFormat)
	assert.Contains(t, err.Error(), path)
}

// A file that is cut while it is mapped must not take the program with it.
func TestGuard(t *testing.T) {
	const n = 1 << 20
	path := filepath.Join(t.TempDir(), "a.safetensors")
	write(t, path, encode(t, st.Bytes("a", st.U8, make([]byte, n), n)))
	f, err := st.OpenFile(path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, os.Truncate(path, 4096))
	sum := 0
	err = st.Guard(func() error {
		for _, b := range f.Tensors["a"].Data {
			sum += int(b)
		}
		return nil
	})
	assert.ErrorIs(t, err, st.ErrFormat)
	err = st.Guard(func() error { return io.EOF })
	assert.True(t, err == io.EOF, "%v", err)
	defer func() {
		assert.Equal(t, "other", recover(), "Guard kept a panic that is not its own")
	}()
	_ = st.Guard(func() error { panic("other") })
}

func TestModel(t *testing.T) {
	_, err := st.Open(t.TempDir(), st.All)
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.Contains(t, err.Error(), "neither "+st.IndexName+" nor "+st.SingleName)
	dir := t.TempDir()
	write(t, filepath.Join(dir, st.SingleName), encode(t, st.Bytes("a", st.U8, []byte{1}, 1)))
	check := func(want map[string]byte) {
		t.Helper()
		m, err := st.Open(dir, st.All)
		require.NoError(t, err)
		got := m.Names()
		assert.True(t, slices.Equal(got, slices.Sorted(maps.Keys(want))), "%v", got)
		for name, v := range want {
			x, err := m.Tensor(name)
			require.NoError(t, err, "%v", x)
			assert.False(t, x.Data[0] != v || !m.Has(name) || m.File(name) == "", "%v", x)
		}
		_, err = m.Tensor("none")
		require.ErrorIs(t, err, st.ErrFormat)
		assert.False(t, m.Has("none") || m.File("none") != "")
		assert.NoError(t, errors.Join(m.Close(), m.Close()))
	}
	check(map[string]byte{"a": 1})
	write(t, filepath.Join(dir, "1.safetensors"), encode(t, st.Bytes("b", st.U8, []byte{2}, 1), st.Bytes("unlisted", st.U8, []byte{9}, 1)))
	write(t, filepath.Join(dir, "2.safetensors"), encode(t, st.Bytes("c", st.U8, []byte{3}, 1)))
	write(t, filepath.Join(dir, st.IndexName), []byte(`{"metadata":{"total_size":3},"weight_map":{"b":"1.safetensors","c":"2.safetensors"}}`))
	check(map[string]byte{"b": 2, "c": 3})
}

func TestModelRefuses(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "1.safetensors"), encode(t, st.Bytes("b", st.U8, []byte{2}, 1)))
	for name, index := range map[string]string{
		"not JSON":       `weight_map`,
		"no map":         `{}`,
		"null map":       `{"weight_map":null}`,
		"map of numbers": `{"weight_map":{"b":1}}`,
		"no end":         `{"weight_map":{"b":"1.safetensors"}`,
		"twice":          `{"weight_map":{"b":"1.safetensors","b":"1.safetensors"}}`,
		"two maps":       `{"weight_map":{},"weight_map":{}}`,
		"above":          `{"weight_map":{"b":"../1.safetensors"}}`,
		"absolute":       `{"weight_map":{"b":"/1.safetensors"}}`,
		"folder":         `{"weight_map":{"b":"x/1.safetensors"}}`,
		"the folder":     `{"weight_map":{"b":"."}}`,
		"no file":        `{"weight_map":{"b":""}}`,
		"more":           `{"weight_map":{"b":"1.safetensors"}}{}`,
	} {
		write(t, filepath.Join(dir, st.IndexName), []byte(index))
		_, err := st.Open(dir, st.All)
		assert.ErrorIs(t, err, st.ErrFormat, name)
	}
	write(t, filepath.Join(dir, st.IndexName), []byte(`{"weight_map":{"b":"2.safetensors","c":"1.safetensors"}}`))
	m, err := st.Open(dir, st.All)
	require.NoError(t, err)
	defer m.Close()
	_, err = m.Tensor("b")
	assert.ErrorIs(t, err, fs.ErrNotExist)
	_, err = m.Tensor("c")
	assert.ErrorIs(t, err, st.ErrFormat)
}

// What Parse accepts is consistent: every tensor has the bytes it needs, and
// together they are all bytes after the header.
func FuzzParse(f *testing.F) {
	f.Add(encode(f, st.Bytes("a.weight", st.BF16, make([]byte, 12), 2, 3), st.Bytes("b", st.F8E4M3, make([]byte, 4), 4), st.Bytes("c", st.F4, make([]byte, 4), 8)))
	f.Add(encode(f, st.Bytes("a.weight", st.F8E4M3, make([]byte, 33), 33, 1), st.Bytes("a.scale", st.F8E8M0, make([]byte, 2), 2, 1)))
	f.Add(file(`{"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0))
	f.Add(file(`{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"y":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}}`, 7))
	f.Add(file(`{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2))
	f.Add(binary.LittleEndian.AppendUint64(nil, 1<<63))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := st.Parse(data)
		if err != nil {
			assert.ErrorIs(t, err, st.ErrFormat, "untyped error")
			return
		}
		n := binary.LittleEndian.Uint64(data)
		require.True(t, json.Valid(data[8:8+n]), "%q", data[8:8+n])
		total := uint64(0)
		for name, x := range all {
			n := uint64(x.DType.Bits())
			for _, d := range x.Shape {
				n *= uint64(d)
			}
			require.Equal(t, name, x.Name, "%v with %d bytes", x, len(x.Data))
			assert.Equal(t, 8*uint64(len(x.Data)), n, "%v with %d bytes", x, len(x.Data))
			total += uint64(len(x.Data))
		}
		assert.Equal(t, uint64(len(data))-8-binary.LittleEndian.Uint64(data), total,
			"%d of %d bytes", total, uint64(len(data))-8-binary.LittleEndian.Uint64(data))
	})
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":3},"weight_map":{"b":"1.safetensors","c":"2.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"b":"../1.safetensors"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		where, err := st.ParseIndex(data)
		if err != nil {
			assert.ErrorIs(t, err, st.ErrFormat, "untyped error")
			return
		}
		// What is accepted is what encoding/json reads.
		var index map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(data, &index), "%q", data)
		var want map[string]string
		require.NoError(t, json.Unmarshal(index["weight_map"], &want), "%q", data)
		for name, file := range where {
			assert.True(t, filepath.Base(file) == file && filepath.IsLocal(file), "%q leads to %q", name, file)
			assert.Equal(t, want[name], file, "%q", name)
		}
	})
}

// TestModelTwice refuses a tensor that two files have: readers would disagree which one counts.
func TestModelTwice(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "1.safetensors"), encode(t, st.Bytes("b", st.U8, []byte{2}, 1), st.Bytes("c", st.U8, []byte{7}, 1)))
	write(t, filepath.Join(dir, "2.safetensors"), encode(t, st.Bytes("c", st.U8, []byte{3}, 1)))
	write(t, filepath.Join(dir, st.IndexName), []byte(`{"weight_map":{"b":"1.safetensors","c":"2.safetensors"}}`))
	m, err := st.Open(dir, st.All)
	require.NoError(t, err)
	defer m.Close()
	_, err = m.Tensor("b")
	assert.ErrorIs(t, err, st.ErrFormat)
	assert.ErrorContains(t, err, `"c" is in 1.safetensors, and the index has it in 2.safetensors`)
}
