package vectors

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// folder writes a manifest and one archive, and returns the folder.
func folder(t testing.TB, manifest string, members map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "manifest.json"), []byte(manifest), 0o600))
	if members == nil {
		return dir
	}
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for name, data := range members {
		w, err := z.Create(name)
		require.NoError(t, err)
		w.Write(data)
	}
	require.NoError(t, z.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.npz"), buf.Bytes(), 0o600))
	return dir
}

// npy writes version 1 of the format.
func npy(descr, shape string, data []byte) []byte {
	h := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape)
	h += strings.Repeat(" ", (64-(11+len(h))%64)%64) + "\n"
	out := append([]byte("\x93NUMPY\x01\x00"), 0, 0)
	binary.LittleEndian.PutUint16(out[8:], uint16(len(h)))
	return append(append(out, h...), data...)
}

const small = `{"machine": "a test", "ops": [
 {"op": "one", "file": "a.npz", "about": "first", "cases": [
  {"name": "c", "case": "two numbers", "params": {"n": 2, "scale": 0.5, "big": 9007199254740993}, "arrays": {
   "x": {"shape": [2], "npy": "int32", "role": "in"},
   "buf_after": {"shape": [1, 3], "npy": "uint8", "role": "after"}}}]},
 {"op": "two", "file": "a.npz", "cases": [
  {"name": "d", "params": {"inputs": "one.c", "n": 7}, "arrays": {
   "y": {"shape": [], "npy": "float32", "role": "out"}}}]}]}`

func smallMembers() map[string][]byte {
	return map[string][]byte{
		"c.x.npy":         npy("<i4", "2,", []byte{1, 0, 0, 0, 255, 255, 255, 255}),
		"c.buf_after.npy": npy("|u1", "1, 3", []byte{7, 8, 9}),
		"d.y.npy":         npy("<f4", "", []byte{0, 0, 128, 63}),
	}
}

func TestCase(t *testing.T) {
	s, err := Open(folder(t, small, smallMembers()))
	require.NoError(t, err)
	assert.Equal(t, "a test[one two] [c] []", fmt.Sprint(s.Machine, s.Ops(), s.Cases("one"), s.Cases("none")), "listing")
	for _, op := range s.Ops() {
		assert.NoError(t, s.Check(op))
	}
	c, err := s.Case("one", "c")
	require.NoError(t, err)
	in := c.Input()
	x := in.Array("x", I32, -1).I32()
	require.Equal(t, 2, len(x), "x = %v", x)
	require.Equal(t, int32(1), x[0], "x = %v", x)
	assert.Equal(t, int32(-1), x[1], "x = %v", x)
	if n, f, d := in.Int("n"), in.Float("scale"), in.IntOr("absent", 5); n != 2 || f != 0.5 || d != 5 {
		t.Errorf("parameters %v %v %v", n, f, d)
	}
	assert.Equal(t, []byte{0xA5, 0xA5, 0xA5}, in.Array("buf_before", U8, 1, 3).Data, "buffer that was left out")
	assert.NoError(t, in.Err())
	require.Equal(t, []byte{7, 8, 9}, c.Want["buf_after"].Data, "wanted %v", c.Want)
	assert.Equal(t, RoleAfter, c.Role["buf_after"], "wanted %v", c.Want)
	d, err := s.Case("two", "d")
	require.NoError(t, err)
	in = d.Input()
	assert.True(t, in.Int("n") == 7 && in.Has("x") && in.Float("scale") == 0.5 && in.Err() == nil,
		"case with the inputs of another: %+v", d)
	y := d.Want["y"].F32()
	require.Equal(t, 1, len(y), "scalar: %v", y)
	assert.Equal(t, float32(1), y[0], "scalar: %v", y)
}

// What says the same in another way is taken.
func TestInputFits(t *testing.T) {
	ints := FromI64([]int64{1, -2, 3}, 3, 1, 1)
	c := Case{In: Arrays{"long": ints, "short": {I16, []int{2}, []byte{255, 255, 5, 0}}, "byte": FromU8([]byte{200}, 1, 1, 1),
		"far": FromI64([]int64{1 << 31}, 1), "beyond": {U64, []int{1}, []byte{0, 0, 0, 0, 0, 0, 0, 128}}, "rows": FromU16(make([]uint16, 8), 2, 4), "real": FromF32([]float32{1}, 1)}}
	for _, x := range []struct {
		name string
		t    Type
		dims []int
		want []int64 // nil: refused
	}{
		{"long", I32, []int{-1, -1}, []int64{1, -2, 3}}, {"long", I64, []int{3}, []int64{1, -2, 3}}, {"long", I32, []int{-1, -1, 2}, nil},
		{"short", I32, []int{-1}, []int64{-1, 5}}, {"short", I64, []int{2, 1}, []int64{-1, 5}}, {"short", I64, []int{-1, -1}, nil},
		{"byte", I64, []int{-1, 1}, []int64{200}}, {"byte", I32, []int{1}, []int64{200}}, {"byte", I32, []int{2}, nil},
		{"far", I64, nil, []int64{1 << 31}}, {"far", I32, nil, nil}, {"beyond", I64, nil, nil}, {"real", I32, nil, nil},
		{"rows", U16, []int{-1, 1, 4}, make([]int64, 8)}, {"rows", U8, []int{-1, -1}, nil}, {"rows", U16, []int{-1}, nil},
	} {
		in := c.Input()
		a := in.Array(x.name, x.t, x.dims...)
		if in.Err() != nil || x.want == nil {
			require.ErrorIs(t, in.Err(), ErrFormat, "%s as %v %v: %v, want %v", x.name, x.t, x.dims, a, x.want)
			assert.True(t, x.want == nil && a.IsZero(), "%s as %v %v: %v, want %v", x.name, x.t, x.dims, a, x.want)
			continue
		}
		assert.False(t, a.Type != x.t || len(x.dims) > 0 && len(a.Shape) != len(x.dims) || a.Len() != len(x.want),
			"%s as %v %v: %v", x.name, x.t, x.dims, a)
		for i, v := range a.Float64s() {
			if v != float64(x.want[i]) {
				t.Errorf("%s as %v: %v, want %v", x.name, x.t, a.Float64s(), x.want)
			}
		}
	}
	require.Equal(t, "int64 [3, 1, 1]", ints.String(), "the case was changed")
	assert.Equal(t, "uint16 [2, 4]", c.In["rows"].String(), "the case was changed")
}

func TestInputFirst(t *testing.T) {
	c := Case{In: Arrays{"x": FromI32([]int32{1, 2, 3, 4, 5, 6}, 3, 2)}}
	in := c.Input()
	a := in.First(2, "x", I32, 2)
	assert.NoError(t, in.Err(), "%v", a)
	require.Equal(t, "int32 [2, 2]", a.String(), "%v", a)
	assert.Equal(t, []int32{1, 2, 3, 4}, a.I32(), "%v", a)
	a = in.First(3, "x", I64, -1)
	assert.NoError(t, in.Err(), "%v", a)
	assert.Equal(t, 6, a.Len(), "%v", a)
	a = in.First(4, "x", I32, -1)
	require.ErrorIs(t, in.Err(), ErrFormat, "%v", a)
	assert.True(t, a.IsZero(), "%v", a)
}

func TestBooleans(t *testing.T) {
	m := smallMembers()
	m["c.buf_after.npy"] = npy("|b1", "1, 3", []byte{1, 0, 1})
	s, err := Open(folder(t, edit("uint8", "bool"), m))
	require.NoError(t, err)
	c, err := s.Case("one", "c")
	require.NoError(t, err, "%v", c.Want)
	assert.Equal(t, U8, c.Want["buf_after"].Type, "%v", c.Want)
}

// Bookkeeping of a type that there is not here is left out.
func TestUnreadableBookkeeping(t *testing.T) {
	for _, more := range []string{`"note": {"shape": [1], "npy": "str", "role": "aux"},`, `"info_note": {"shape": [1], "npy": "object", "role": "out"},`} {
		s, err := Open(folder(t, edit(`"x": {`, more+` "x": {`), smallMembers()))
		require.NoError(t, err)
		c, err := s.Case("one", "c")
		require.NoError(t, err, "%v, %v", c.In, c.Want)
		assert.True(t, len(c.In) == 2 && len(c.Want) == 1 && s.Check("one") == nil, "%v, %v", c.In, c.Want)
	}
}

func TestInputErrors(t *testing.T) {
	s, err := Open(folder(t, small, smallMembers()))
	require.NoError(t, err)
	c, err := s.Case("one", "c")
	require.NoError(t, err)
	c.Params["text"] = "no number"
	for name, ask := range map[string]func(*Input){
		"absent array":     func(in *Input) { in.Array("z", I32) },
		"wrong type":       func(in *Input) { in.Array("x", U8) },
		"wrong rank":       func(in *Input) { in.Array("x", I32, -1, -1) },
		"wrong dimension":  func(in *Input) { in.Optional("x", I32, 3) },
		"absent parameter": func(in *Input) { in.Int("z") },
		"fraction":         func(in *Input) { in.Int("scale") },
		"too big":          func(in *Input) { in.c.Params["big"] = 1e300; in.Int("big") },
		"no number":        func(in *Input) { in.Float("text") },
	} {
		in := c.Input()
		ask(in)
		assert.ErrorIs(t, in.Err(), ErrFormat, "%s: error", name)
		assert.True(t, in.Array("x", I32, 2).IsZero(), "%s: an array after the first error", name)
	}
	in := c.Input()
	assert.True(t, in.Optional("z", I32).IsZero() && in.Err() == nil, "an optional array that is absent must be no error")
}

// edit returns small with one text replaced.
func edit(old, new string) string { return strings.Replace(small, old, new, 1) }

// What a manifest is and should be is said without types of Go.
func TestOtherManifest(t *testing.T) {
	for manifest, says := range map[string]string{
		`[]`:                                   `got array, want an object with a list "ops"`,
		`{"ops": 3}`:                           "ops: got number, want a list",
		edit(`"name": "c"`, `"name": 7`):       "ops.cases.name: got number, want a string",
		edit(`"shape": [2]`, `"shape": ["2"]`): "shape: got string, want a number",
	} {
		_, err := Open(folder(t, manifest, nil))
		require.ErrorIs(t, err, ErrFormat)
		assert.Contains(t, err.Error(), says)
	}
}

func TestHostileFolders(t *testing.T) {
	with := func(name string, data []byte) map[string][]byte {
		m := smallMembers()
		if data == nil {
			delete(m, name)
		} else {
			m[name] = data
		}
		return m
	}
	good := smallMembers()["c.x.npy"]
	huge := `"shape": [4611686018427387904, 4611686018427387904]`
	for _, c := range []struct {
		name, manifest string
		members        map[string][]byte
	}{
		{"no JSON", "{", nil},
		{"no ops", `{"ops": []}`, nil},
		{"ops of another type", `{"ops": 3}`, nil},
		{"no archive", small, nil},
		{"file outside", edit(`a.npz`, `../a.npz`), smallMembers()},
		{"file in a folder", edit(`a.npz`, `b/a.npz`), smallMembers()},
		{"empty file name", edit(`a.npz`, ``), smallMembers()},
		{"operation twice", edit(`"two"`, `"one"`), smallMembers()},
		{"escape in a name", edit(`"op": "one"`, `"op": "\u001b[2Jone"`), smallMembers()},
		{"case name with a separator", edit(`"name": "c"`, `"name": "../c"`), smallMembers()},
		{"unknown type", edit("int32", "complex128"), smallMembers()},
		{"unknown role", edit(`"role": "in"`, `"role": "out of band"`), smallMembers()},
		{"negative shape", edit(`"shape": [2]`, `"shape": [-2]`), smallMembers()},
		{"huge shape", edit(`"shape": [2]`, huge), smallMembers()},
		{"large shape", edit(`"shape": [2]`, `"shape": [268435456]`), smallMembers()},
		{"other shape", edit(`"shape": [2]`, `"shape": [2, 1]`), smallMembers()},
		{"other type", edit("int32", "uint32"), smallMembers()},
		{"reference to nothing", edit("one.c", "one.z"), smallMembers()},
		{"reference in a circle", edit("one.c", "two.d"), smallMembers()},
		{"reference is a number", edit(`"one.c"`, `3`), smallMembers()},
		{"missing member", small, with("c.x.npy", nil)},
		{"empty member", small, with("c.x.npy", []byte{})},
		{"no magic", small, with("c.x.npy", []byte("PK12345678901234567890"))},
		{"cut header", small, with("c.x.npy", good[:40])},
		{"cut data", small, with("c.x.npy", good[:len(good)-1])},
		{"too much data", small, with("c.x.npy", append(append([]byte{}, good...), 0))},
		{"header without newline", small, with("c.x.npy", []byte("\x93NUMPY\x01\x00\x03\x00abc"))},
		{"huge header", small, with("c.x.npy", []byte("\x93NUMPY\x02\x00\xff\xff\xff\xff"))},
		{"version", small, with("c.x.npy", []byte("\x93NUMPY\x09\x00\x00\x00"))},
		{"big-endian", small, with("c.x.npy", npy(">i4", "2,", make([]byte, 8)))},
		{"header with a huge shape", small, with("c.x.npy", npy("<i4", "99999999999999999999,", nil))},
		{"column-major", small, with("c.buf_after.npy", bytes.Replace(smallMembers()["c.buf_after.npy"], []byte("False"), []byte("True "), 1))},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := readAll(folder(t, c.manifest, c.members))
			assert.ErrorIs(t, err, ErrFormat, "error")
			assert.False(t, err != nil && strings.ContainsAny(err.Error(), "\x1b\n"), "control characters in %q", err)
		})
	}
	_, err := Open(t.TempDir())
	assert.ErrorIs(t, err, os.ErrNotExist, "a folder without a manifest")
}

// readAll reads everything a folder has.
func readAll(dir string) error {
	s, err := Open(dir)
	if err != nil {
		return err
	}
	var first error
	for _, op := range s.Ops() {
		checked := s.Check(op)
		for _, name := range s.Cases(op) {
			if _, err := s.Case(op, name); err != nil {
				first = err
			}
		}
		if checked != nil {
			first = checked
		}
	}
	return first
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(small), []byte{})
	f.Add([]byte(`{"ops":[{"op":"a","file":"a.npz","cases":[{"name":"b","params":{"inputs":"a.b"}}]}]}`), []byte{1})
	f.Add([]byte(edit(`"shape": [2]`, `"shape": [1e9]`)), []byte("PK"))
	f.Fuzz(func(t *testing.T, manifest, archive []byte) {
		dir := t.TempDir()
		os.WriteFile(filepath.Join(dir, "manifest.json"), manifest, 0o600)
		os.WriteFile(filepath.Join(dir, "a.npz"), archive, 0o600)
		readAll(dir)
	})
}

func FuzzNpy(f *testing.F) {
	for _, m := range smallMembers() {
		f.Add(m)
	}
	f.Add([]byte("\x93NUMPY\x02\x00\x08\x00\x00\x00{'shape'"))
	f.Add(npy("<f8", "3, 0, 2", nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := readNpyHeader(bytes.NewReader(data))
		if err != nil {
			return
		}
		left := allowance(freeBytes)
		a, err := readNpy(bytes.NewReader(data), h.t, h.shape, &left)
		assert.False(t, err == nil && len(a.Data) != a.Len()*a.Type.Size(), "%v with %d bytes", a, len(a.Data))
		assert.LessOrEqual(t, len(a.Float64s()), len(data), "more elements than bytes")
	})
}

// TestGolden reads all of the folder in the repository, and holds it against its list and the
// limits that its README states.
func TestGolden(t *testing.T) {
	const dir = "../../../testdata/golden"
	require.NoError(t, readAll(dir))
	text, err := os.ReadFile("../../../testdata/cases.txt")
	require.NoError(t, err)
	list := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(text)), "\n"), func(line string) bool { return line == "" || line[0] == '#' })
	s, err := Open(dir)
	require.NoError(t, err)
	var cases []string
	for _, op := range s.Ops() {
		for _, name := range s.Cases(op) {
			cases = append(cases, op+"."+name)
		}
	}
	assert.ElementsMatch(t, list, cases)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	total := int64(0)
	for _, f := range files {
		info, err := f.Info()
		require.NoError(t, err)
		assert.LessOrEqual(t, info.Size(), int64(2<<20), f.Name())
		total += info.Size()
	}
	assert.LessOrEqual(t, total, int64(7<<20))
}
