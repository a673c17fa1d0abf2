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
	"reflect"
	"slices"
	"strings"
	"testing"
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
			if err := w.Add(name, want[name]); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	data := write()
	if !bytes.Equal(data, write()) {
		t.Error("equal arrays gave different files")
	}
	path := filepath.Join(t.TempDir(), "a.npz")
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	a, err := OpenArchive(path)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if len(a.Names()) != len(want) || !slices.IsSorted(a.Names()) {
		t.Error(a.Names())
	}
	for name, w := range want {
		got, err := a.Array(name)
		if err != nil || got.Type != w.Type || shapeString(got.Shape) != shapeString(w.Shape) || !bytes.Equal(got.Data, w.Data) || !a.Has(name) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, w)
		}
	}
	if _, err := a.Array("none"); !errors.Is(err, ErrFormat) || a.Has("none") {
		t.Error(err)
	}
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
		if text := strings.TrimRight(string(h[10:]), " \n"); text != c.want || len(h)%64 != 0 || h[len(h)-1] != '\n' || int(h[8])+int(h[9])<<8 != len(h)-10 {
			t.Errorf("%q, want %q", h, c.want)
		}
		if got, err := readNpyHeader(bytes.NewReader(h)); err != nil || !reflect.DeepEqual(got, npyHead{t: c.a.Type, shape: append([]int{}, c.a.Shape...)}) {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

// NumPy's savez keeps the order that an array has in memory.
func TestArchiveOfColumns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.npz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	for name, data := range map[string][]byte{ // [2, 3, 2], counted in the order of columns; one of one dimension
		"a.npy": npy("<i2", "2, 3, 2", []byte{0, 0, 6, 0, 2, 0, 8, 0, 4, 0, 10, 0, 1, 0, 7, 0, 3, 0, 9, 0, 5, 0, 11, 0}), "b.npy": npy("|u1", "2,", []byte{1, 2}),
	} {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		w.Write(bytes.Replace(data, []byte("False"), []byte("True "), 1))
	}
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	a, err := OpenArchive(path)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	x, err := a.Array("a")
	if err != nil || x.String() != "int16 [2, 3, 2]" {
		t.Fatal(x, err)
	}
	for i, v := range x.Float64s() {
		if v != float64(i) {
			t.Fatalf("%v", x.Float64s())
		}
	}
	if x, err = a.Array("b"); err != nil || !bytes.Equal(x.Data, []byte{1, 2}) {
		t.Error(x, err)
	}
}

func TestArchiveRefuses(t *testing.T) {
	w := NewArchiveWriter(io.Discard)
	for name, a := range map[string]Array{
		"a/b": FromU8(nil, 0), "": FromU8(nil, 0), "short": {Type: F32, Shape: []int{2}, Data: make([]byte, 7)},
		"negative": {Type: F32, Shape: []int{-1}}, "typeless": {Shape: []int{0}}, "large": {Type: U8, Shape: []int{1 << 40}},
	} {
		if err := w.Add(name, a); !errors.Is(err, ErrFormat) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := errors.Join(w.Add("a", FromU8(nil, 0)), w.Add("b", FromU8(nil, 0))); err != nil {
		t.Error(err)
	}
	if err := w.Add("a", FromU8(nil, 0)); !errors.Is(err, ErrFormat) {
		t.Error(err)
	}
	if _, err := OpenArchive(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	open := func(members ...string) (*Archive, error) {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		for i := 0; i < len(members); i += 2 {
			f, err := z.Create(members[i])
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(f, members[i+1])
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "a.npz")
		if err := os.WriteFile(path, b.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
		return OpenArchive(path)
	}
	ok := string(npy("|u1", "2,", []byte{1, 2}))
	for name, members := range map[string][]string{"another file": {"a.txt", ""}, "twice": {"a.npy", ok, "a.npy", ok}, "a path": {"x/a.npy", ok}} {
		if _, err := open(members...); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, data := range map[string]string{"empty": "", "short": ok[:len(ok)-1], "long": ok + "x",
		"huge": string(npy("<f8", "1048576, 1048576", nil)), "negative": string(npy("<f8", "-1,", nil))} {
		a, err := open("a.npy", data)
		if err != nil {
			t.Fatal(err)
		}
		if x, err := a.Array("a"); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v, %v", name, x, err)
		}
		a.Close()
	}
	path := filepath.Join(t.TempDir(), "a.npz")
	if err := os.WriteFile(path, []byte("PK"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenArchive(path); !errors.Is(err, ErrFormat) {
		t.Error(err)
	}
}
