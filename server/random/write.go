package random

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/server/text"
	"github.com/vkmla/vkmla/server/weights"
)

const (
	alphabet = 1 << 20 // random numbers of a kind; tensors repeat them from anywhere on

	spreadFP8 = 64  // of E4M3 codes' values, whose largest is 448
	spreadFP4 = 2.5 // of E2M1 codes' values, whose largest is 6
)

// Write writes a checkpoint to a folder: config.json, a file for each layer, one for the rest,
// their index, and a tokenizer of bytes and the marks of conversations. The same seed gives the
// same bytes. It returns the bytes of the weights. Each core has a file of its own, since systems
// let one at a time write to a file: the disk decides how long it takes. A layer as wide as
// V4-Flash's has 3.6 GB.
//
// Errors: model.ErrConfig; fs.ErrExist where the folder has a config.json, which other weights may
// belong to; the context's; the file system's.
func Write(ctx context.Context, dir string, c weights.Config, seed uint64) (size int64, err error) {
	if err := c.Check(); err != nil {
		return 0, fmt.Errorf("random: write: %w", err)
	}
	config, err := configFile(c)
	if err == nil {
		err = os.MkdirAll(dir, 0o777)
	}
	if _, there := os.Stat(filepath.Join(dir, "config.json")); err == nil && there == nil {
		err = fmt.Errorf("%s: got a config.json, want a folder without: %w", dir, fs.ErrExist)
	}
	if err != nil {
		return 0, fmt.Errorf("random: write: %w", err)
	}
	w := writer{dir: dir, seed: seed, where: map[string]string{}}
	w.group, w.ctx = errgroup.WithContext(ctx)
	w.group.SetLimit(runtime.GOMAXPROCS(0))
	err = w.file("model-ends.safetensors", ends(&c))
	for i := 0; i < len(c.Layers) && err == nil; i++ {
		err = w.file(fmt.Sprintf("model-layer-%03d.safetensors", i), layer(&c, i))
	}
	if waiting := w.group.Wait(); err == nil || waiting != nil {
		err = waiting
	}
	if err == nil {
		err = w.index()
	}
	if err == nil {
		err = w.tokenizer()
	}
	if err == nil { // last: a folder with a config.json is whole
		err = os.WriteFile(filepath.Join(dir, "config.json"), config, 0o666)
	}
	if err != nil {
		return w.size, fmt.Errorf("random: write: %w", err)
	}
	return w.size, nil
}

// writer writes files on all cores.
type writer struct {
	dir   string
	seed  uint64
	size  int64
	where map[string]string // of each tensor: its file
	ctx   context.Context
	group *errgroup.Group
	pools sync.Map // by tensor.kind: once for its alphabet
}

// file writes a file on one core: the length of its header, the header in JSON, then the tensors.
// Wide numbers come first, so that all begin where a multiple of their width does.
func (w *writer) file(name string, list tensors) error {
	slices.SortStableFunc(list, func(a, b tensor) int { return cmp.Compare(bytesOf[b.dtype], bytesOf[a.dtype]) })
	header, at := map[string]any{}, int64(0)
	for _, t := range list {
		header[t.name] = map[string]any{"dtype": t.dtype, "shape": t.shape, "data_offsets": []int64{at, at + t.size}}
		w.where[t.name] = name
		at += t.size
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	text = append(text, bytes.Repeat([]byte{' '}, -(8+len(text))&63)...) // tensors begin at lines of the cache
	w.size += 8 + int64(len(text)) + at
	w.group.Go(func() error {
		f, err := os.Create(filepath.Join(w.dir, name))
		if err != nil {
			return err
		}
		_, err = f.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...))
		for i := 0; i < len(list) && err == nil; i++ {
			err = w.tensor(f, &list[i])
		}
		return errors.Join(err, f.Close())
	})
	return nil
}

// tensor writes a tensor: pieces of the alphabet as they are, since copies of them take longer than
// the system takes for its own.
func (w *writer) tensor(f io.Writer, t *tensor) error {
	if t.dtype == "I64" || t.dtype == "I32" {
		_, err := f.Write(t.table(w.seed))
		return err
	}
	from, rng := w.alphabet(t), random(w.seed, t.name)
	for left := t.size; left > 0; {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		each, values := letter(t.dtype)
		at := rng.IntN(alphabet/int(values)) * int(each)
		n := min(left, int64(len(from)-at))
		if _, err := f.Write(from[at:][:n]); err != nil {
			return err
		}
		left -= n
	}
	return nil
}

// table makes rows of experts; no expert is twice in a row.
func (t *tensor) table(seed uint64) (data []byte) {
	rng := random(seed, t.name)
	for range t.shape[0] {
		for _, e := range rng.Perm(t.numbers.most)[:t.shape[1]] {
			if t.dtype == "I32" {
				data = binary.LittleEndian.AppendUint32(data, uint32(e))
				continue
			}
			data = binary.LittleEndian.AppendUint64(data, uint64(e))
		}
	}
	return data
}

// random depends on a seed and on what it is for.
func random(seed uint64, what ...any) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, what...)
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// alphabet are random numbers as a tensor stores them.
func (w *writer) alphabet(t *tensor) []byte {
	type kind struct {
		dtype string
		numbers
	}
	of := kind{t.dtype, t.numbers}
	once, _ := w.pools.LoadOrStore(of, sync.OnceValue(func() []byte {
		return letters(t, random(w.seed, of))
	}))
	return once.(func() []byte)()
}

func letters(t *tensor, rng *rand.Rand) (data []byte) {
	n := t.numbers
	if bytesOf[t.dtype] == 0 {
		_, values := letter(t.dtype)
		for range alphabet / values {
			data = append(data, block(t.dtype, n.spread, rng)...)
		}
		return data
	}
	for range alphabet {
		x := n.mean + n.spread*rng.NormFloat64()
		switch t.dtype {
		case "BF16":
			data = binary.LittleEndian.AppendUint16(data, uint16(math.Float32bits(float32(x))>>16))
		case "F16":
			data = binary.LittleEndian.AppendUint16(data, numfmt.F16Encode(float32(x)))
		case "F32":
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(x)))
		case "F8_E4M3":
			data = append(data, e4m3(spreadFP8*rng.NormFloat64()))
		case "F8_E8M0":
			data = append(data, byte(127+n.exponent-rng.IntN(2)))
		case "I8": // two codes of MXFP4
			data = append(data, e2m1(spreadFP4*rng.NormFloat64())|e2m1(spreadFP4*rng.NormFloat64())<<4)
		}
	}
	return data
}

// e4m3 returns a code near a number, never NaN: what follows the 3 bits after the leading one is
// cut off.
func e4m3(x float64) byte {
	sign := byte(0)
	if x < 0 {
		sign, x = 0x80, -x
	}
	m, e := math.Frexp(min(x, 448)) // m in [1/2, 1)
	if e += 6; e < 1 {
		return sign
	}
	return sign | byte(e)<<3 | byte(m*16)&7
}

// e2m1 is the code of the nearest value.
func e2m1(x float64) byte {
	best := byte(0)
	for code := range byte(16) {
		if math.Abs(float64(numfmt.E2M1Decode(code))-x) < math.Abs(float64(numfmt.E2M1Decode(best))-x) {
			best = code
		}
	}
	return best
}

// index says which file has a tensor.
func (w *writer) index() error {
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": w.size}, "weight_map": w.where})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(w.dir, "model.safetensors.index.json"), data, 0o666)
}

// marks are the first tokens: of config.json 0 and 1 are those that texts begin and end with.
var marks = []string{"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
	"<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜"}

func (w *writer) tokenizer() error {
	data, err := text.Plain(marks...)
	if err == nil {
		err = os.WriteFile(filepath.Join(w.dir, "tokenizer.json"), data, 0o666)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(w.dir, "tokenizer_config.json"),
		fmt.Appendf(nil, `{"add_bos_token": false, "bos_token": %q, "eos_token": %q}`, marks[0], marks[1]), 0o666)
}
