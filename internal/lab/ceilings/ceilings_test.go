// Package ceilings holds a test only: what files may come from anybody make no reader take more
// than 64 MiB and twice their own size.
package ceilings

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/internal/lab/fakegguf"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/pipeline/model"
)

// readers read all of a file or folder as a command would.
var readers = map[string]func(path string) error{
	"nothing": func(string) error { return nil },
	"archive": func(path string) error {
		a, err := vectors.OpenArchive(path)
		if err != nil {
			return err
		}
		defer a.Close()
		for _, name := range a.Names()[:min(len(a.Names()), 100)] {
			if _, err := a.Array(name); err != nil {
				return err
			}
		}
		return nil
	},
	"vectors": func(path string) error {
		s, err := vectors.Open(path)
		if err != nil {
			return err
		}
		for _, op := range s.Ops() {
			for _, c := range s.Cases(op)[:min(len(s.Cases(op)), 100)] {
				if _, err := s.Case(op, c); err != nil {
					return err
				}
			}
		}
		return nil
	},
	"peers": func(path string) error { _, err := bench.ReadPeers(path); return err },
	"checkpoint": func(path string) error {
		c, err := model.Open(path, model.CheckpointOptions{})
		if err == nil {
			err = c.Close()
		}
		return err
	},
	"drafts": func(path string) error {
		c, err := model.Open(path, model.CheckpointOptions{Layers: []int{0, 1}, Drafts: filepath.Join(path, "draft")})
		if err == nil {
			err = c.Close()
		}
		return err
	},
}

const (
	readerVar = "VKMLA_TEST_CEILINGS_READER"
	pathVar   = "VKMLA_TEST_CEILINGS_PATH"
)

// TestMain is a reader where a test started it as one. It prints the most memory that the process
// ever held.
func TestMain(m *testing.M) {
	read, path := readers[os.Getenv(readerVar)], os.Getenv(pathVar)
	if read == nil {
		os.Exit(m.Run())
	}
	err := read(path)
	status, _ := os.ReadFile("/proc/self/status")
	kib := 0
	for line := range strings.Lines(string(status)) {
		fmt.Sscanf(line, "VmHWM: %d kB", &kib)
	}
	fmt.Println(kib, err == nil, err)
}

// peak reads in a process of its own, and returns the bytes that this took at most, and the error.
func peak(t *testing.T, reader, path string) (n int, err string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), readerVar+"="+reader, pathVar+"="+path)
	out, e := cmd.CombinedOutput()
	require.NoError(t, e, "%s", out)
	first, rest, _ := strings.Cut(string(out), " ")
	fmt.Sscan(first, &n)
	return n << 10, strings.TrimSpace(rest)
}

const mib = 1 << 20

// header returns a safetensors file of no data.
func header(json string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(json))), json...)
}

// bomb returns an archive with an array of zeros; only a thousandth of it is in the file.
func bomb(t *testing.T, name string, dims ...int) []byte {
	t.Helper()
	n, shape := 2, ""
	for _, d := range dims {
		n, shape = n*d, shape+fmt.Sprintf("%d, ", d)
	}
	head := fmt.Sprintf("{'descr': '<u2', 'fortran_order': False, 'shape': (%s), }\n", shape)
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestSpeed) })
	w, err := z.Create(name + ".npy")
	require.NoError(t, err)
	fmt.Fprintf(w, "\x93NUMPY\x01\x00%s%s", binary.LittleEndian.AppendUint16(nil, uint16(len(head))), head)
	for zeros := make([]byte, mib); n > 0; n -= mib {
		w.Write(zeros[:min(n, mib)])
	}
	require.NoError(t, z.Close())
	return b.Bytes()
}

// directory returns an archive that lists a number of members.
func directory(members int) []byte {
	entry := append([]byte("PK\x01\x02"), make([]byte, 42)...)
	binary.LittleEndian.PutUint16(entry[28:], 1) // a name of one byte
	b := bytes.Repeat(append(entry, 'a'), members)
	end := append([]byte("PK\x05\x06"), make([]byte, 18)...)
	binary.LittleEndian.PutUint16(end[8:], uint16(members))
	binary.LittleEndian.PutUint16(end[10:], uint16(members))
	binary.LittleEndian.PutUint32(end[12:], uint32(len(b)))
	return append(b, end...)
}

// listed is n texts with commas between them; %d in them is the number.
func listed(n int, format string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		if strings.Contains(format, "%") {
			fmt.Fprintf(&b, format, i)
		} else {
			b.WriteString(format)
		}
	}
	return b.String()
}

// many returns a number of tensors of one element each.
func many(n int, format string) []fakegguf.Tensor {
	list, data := make([]fakegguf.Tensor, n), make([]byte, 4)
	for i := range list {
		list[i] = fakegguf.Tensor{Name: fmt.Sprintf(format, i), Format: "F32", Shape: []int{1, 1, 1, 1}, Data: data}
	}
	return list
}

// lettered returns a number of keys.
func lettered(n int) []fakegguf.Key {
	list := make([]fakegguf.Key, n)
	for i := range list {
		list[i] = fakegguf.Key{Name: fmt.Sprintf("%x", i), Value: false}
	}
	return list
}

func TestCeilings(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("the system does not say how much memory a process held")
	}
	base, _ := peak(t, "nothing", "")
	const size = 16 * mib // of large files
	const single, indexed = safetensors.SingleName, safetensors.IndexName
	entry := `"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`
	index := func(n int) string { return `{"weight_map":{` + listed(n, `"layers.0.attn.%x":"a"`) + `}}` }
	manifest := func(n int, one string) string {
		return `{"ops":[{"op":"o","file":"o.npz","cases":[` + listed(n, one) + `]}]}`
	}
	bombed := `{"ops":[{"op":"o","file":"o.npz","cases":[{"name":"c","arrays":{"a":{"shape":[33554432],"npy":"uint16","role":"in"}}}]}]}`
	keys := fakegguf.Keys(fakemodel.Config(0))
	drafts := []fakegguf.Key{{Name: "general.architecture", Value: "deepseek4-dspark"}, {Name: "dspark.stage_count", Value: uint32(4095)},
		{Name: "dspark.block_size", Value: uint32(1)}, {Name: "dspark.target_layer_ids", Value: []int32{0}}}
	zeros, named := bomb(t, "a", 1<<25), bomb(t, "c.a", 1<<25) // 64 MiB in 80 KiB
	for name, c := range map[string]struct {
		reader string
		file   string // in the folder; "" for none
		data   []byte
		error  string // part of it; "true" for none
	}{
		"archive, zeros":          {"archive", "", zeros, "keep large arrays uncompressed"},
		"archive, as many as may": {"archive", "", bomb(t, "a", 12<<20), "true"},
		"archive, 1M members":     {"archive", "", directory(1_000_000 &^ 0xFFFF), "the list of its members is too long"},
		"archive, members":        {"archive", "", directory(maxMembers), "member"},
		"vectors, zeros":          {"vectors", "manifest.json", []byte(bombed), "keep large arrays uncompressed"},
		"vectors, cases":          {"vectors", "manifest.json", []byte(manifest(size/3-100, `{}`)), "values"},
		"vectors, names":          {"vectors", "manifest.json", []byte(manifest(1<<15, `{"name":"%d"}`)), "true"},
		"vectors, parameters":     {"vectors", "manifest.json", []byte(manifest(1<<14, `{"name":"%d","params":{"a":1}}`)), "true"},
		"vectors, arrays": {"vectors", "manifest.json",
			[]byte(manifest(9000, `{"name":"%d","arrays":{"a":{"shape":[],"npy":"int8","role":"in"}}}`)),
			"has no array"},
		"peers, rows":          {"peers", "", []byte(`{"source":"s","rows":[` + listed(size/3-100, `{}`) + `]}`), "values"},
		"peers, fewer rows":    {"peers", "", []byte(`{"source":"s","rows":[` + listed(130_000, `{}`) + `]}`), "row 0"},
		"peers, nested":        {"peers", "", bytes.Repeat([]byte("["), size), "inside each other"},
		"header, a shape":      {"checkpoint", single, header(`{"a":{"shape":[` + listed(size/2, "1") + `]}}`), "more than 16 numbers"},
		"header, metadata":     {"checkpoint", single, header(`{"__metadata__":{` + listed(size/12, `"%x":""`) + `}}`), "absent"},
		"header, tensors":      {"checkpoint", single, header(`{` + listed(size/50, entry) + `}`), "more than 262144 tensors"},
		"header, as many":      {"checkpoint", single, header(`{` + listed(1<<18, entry) + `}`), "absent"},
		"header, attention":    {"checkpoint", single, header(`{` + listed(1<<15, `"layers.0.attn.`+entry[1:]) + `}`), "absent"},
		"header, nested":       {"checkpoint", single, header(strings.Repeat(`{"a":`, size/5)), "unknown"},
		"index, tensors":       {"checkpoint", indexed, []byte(index(1 << 16)), "more than 32768"},
		"index, as many":       {"checkpoint", indexed, []byte(index(1 << 15)), "absent"},
		"index, nested":        {"checkpoint", indexed, []byte(`{"a":` + strings.Repeat("[", size)), "inside each other"},
		"index, a long string": {"checkpoint", indexed, []byte(`{"a":"` + strings.Repeat("x", size) + `","weight_map":{}}`), "absent"},
		"config, ratios": {"checkpoint", "config.json",
			[]byte(`{"compress_ratios":[` + listed(size/2-20, "1") + `]}`), "more than 65536 values"},
		"config, fewer ratios": {"checkpoint", "config.json", []byte(`{"compress_ratios":[` + listed(65_000, "1") + `]}`), "absent"},
		"config, nested":       {"checkpoint", "config.json", bytes.Repeat([]byte(`{"a":`), size/5), "inside each other"},
		"gguf, tensors":        {"checkpoint", "", fakegguf.Encode(keys, many(1<<15, "%x")), "absent"},
		"gguf, attention": {"checkpoint", "", fakegguf.Encode(keys, many(1<<15, "blk.%d.attn_"+strings.Repeat("a", 200))),
			"absent"},
		"gguf, more tensors": {"checkpoint", "", fakegguf.Encode(keys, many(1<<15+1, "%x")), "at most 32768"},
		"gguf, keys":         {"checkpoint", "", fakegguf.Encode(append(lettered(1<<14-len(keys)), keys...), nil), "absent"},
		"gguf, more keys":    {"checkpoint", "", fakegguf.Encode(lettered(size/20), nil), "at most 16384"},
		"gguf, texts": {"checkpoint", "", fakegguf.Encode(append([]fakegguf.Key{{Name: "a", Value: make([]string, size/8)}},
			keys...), nil), "absent"},
		"gguf, a long text": {"checkpoint", "", fakegguf.Encode([]fakegguf.Key{{Name: "general.architecture",
			Value: strings.Repeat("x", size)}}, nil), "this is a model of architecture"},
		"gguf, ratios": {"checkpoint", "", fakegguf.Encode([]fakegguf.Key{{Name: "general.architecture", Value: "deepseek4"},
			{Name: "deepseek4.attention.compress_ratios", Value: make([]int32, size/4)}}, nil), "an array of at most"},
		"drafts, layers": {"drafts", "draft", fakegguf.Encode(drafts, many(1<<12-1, "mtp.%d.norm.weight")), "no tensors draft"},
		"drafts, tensors": {"drafts", "draft", fakegguf.Encode(drafts, many(1<<15, "mtp.%d.attn_"+strings.Repeat("a", 200))),
			"an unknown tensor"},
		"drafts, targets": {"drafts", "draft", fakegguf.Encode(append(drafts[:3:3],
			fakegguf.Key{Name: drafts[3].Name, Value: make([]int32, size/4)}), nil), "an array of at most"},
		"config, rates": {"checkpoint", "config.json",
			[]byte(`{"compress_rates":{` + listed(30_000, `"%x":1`) + `}}`), "hidden_size"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := testkit.MemoryDir(t)
			path, own := dir, len(c.data)
			if c.file == "" {
				path = filepath.Join(dir, "file")
				require.NoError(t, os.WriteFile(path, c.data, 0o666))
			} else {
				if c.reader != "vectors" {
					m := fakemodel.New(fakemodel.Options{Config: fakemodel.Config(0)})
					require.NoError(t, m.Write(dir, 1))
				} else {
					require.NoError(t, os.WriteFile(filepath.Join(dir, "o.npz"), named, 0o666))
				}
				require.NoError(t, os.WriteFile(filepath.Join(dir, c.file), c.data, 0o666))
			}
			n, err := peak(t, c.reader, path)
			t.Logf("%d bytes: %.1f MiB more than nothing, %.200s", own, float64(n-base)/mib, err)
			assert.Contains(t, err, c.error)
			assert.LessOrEqual(t, n-base, 64*mib+2*own)
		})
	}
}

// maxMembers bounds the members that fit into the part of an archive that is looked at.
const maxMembers = (4*mib - 200<<10) / 47
