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
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/vkmla/vkmla/examples/server/weights"
)

const (
	piece    = 8 << 20 // bytes that are made and written at a time
	alphabet = 1 << 20 // random numbers of a kind; tensors repeat them from anywhere on

	spreadFP8 = 64  // of E4M3 codes' values, whose largest is 448
	spreadFP4 = 2.5 // of E2M1 codes' values, whose largest is 6
)

// Write writes a checkpoint to a folder: config.json, a file for each layer, one for the rest, and
// their index. The same seed gives the same bytes. It returns their number. All cores work, so the
// disk decides how long it takes: a layer as wide as V4-Flash's has 3.6 GB.
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
	if err == nil { // last: a folder with a config.json is whole
		err = os.WriteFile(filepath.Join(dir, "config.json"), config, 0o666)
	}
	if err != nil {
		return w.size, fmt.Errorf("random: write: %w", err)
	}
	return w.size, nil
}

// writer writes pieces of files on all cores.
type writer struct {
	dir   string
	seed  uint64
	size  int64
	where map[string]string // of each tensor: its file
	ctx   context.Context
	group *errgroup.Group
	pools sync.Map // by tensor.kind: once for its alphabet
}

// file begins a file: the length of its header, the header in JSON, then the tensors' pieces. Wide
// numbers come first, so that all begin where a multiple of their width does.
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
	f, err := os.Create(filepath.Join(w.dir, name))
	if err != nil {
		return err
	}
	if _, err = f.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)); err != nil {
		f.Close()
		return err
	}
	first := int64(8 + len(text))
	w.size += first + at
	var left atomic.Int64
	all := batches(list)
	left.Store(int64(len(all)))
	for _, b := range all {
		from := first
		first += b.size
		w.group.Go(func() error {
			err := w.ctx.Err()
			if err == nil {
				_, err = f.WriteAt(w.bytes(b), from)
			}
			if left.Add(-1) == 0 {
				err = errors.Join(err, f.Close())
			}
			return err
		})
	}
	return nil
}

// batch is what is written at once: parts of tensors that follow each other.
type batch struct {
	parts []part
	size  int64
}

// part is so many bytes of a tensor.
type part struct {
	tensor   *tensor
	at, size int64
}

// batches cuts a file's tensors.
func batches(list tensors) (all []batch) {
	var b batch
	for i := range list {
		t := &list[i]
		for at := int64(0); at < t.size; {
			n := min(t.size-at, piece-b.size)
			b.parts, b.size = append(b.parts, part{t, at, n}), b.size+n
			if at += n; b.size == piece {
				all, b = append(all, b), batch{}
			}
		}
	}
	if b.size > 0 {
		all = append(all, b)
	}
	return all
}

// bytes makes what a batch writes.
func (w *writer) bytes(b batch) []byte {
	data := make([]byte, 0, b.size)
	for _, p := range b.parts {
		if p.tensor.dtype == "I64" {
			data = p.table(data, w.seed)
			continue
		}
		from := w.alphabet(p.tensor)
		at := random(w.seed, p.tensor.name, p.at).IntN(alphabet) * int(bytesOf[p.tensor.dtype])
		for left := int(p.size); left > 0; {
			n := min(left, len(from)-at)
			data, at, left = append(data, from[at:at+n]...), 0, left-n
		}
	}
	return data
}

// table are rows of experts, of which none is twice in a row.
func (p *part) table(data []byte, seed uint64) []byte {
	k, most := int64(p.tensor.shape[1]), p.tensor.numbers.most
	var row []int
	for at := p.at / 8; at < (p.at+p.size)/8; at++ {
		if row == nil || at%k == 0 {
			row = random(seed, p.tensor.name, at/k).Perm(most)
		}
		data = binary.LittleEndian.AppendUint64(data, uint64(row[at%k]))
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
	for range alphabet {
		x := n.mean + n.spread*rng.NormFloat64()
		switch t.dtype {
		case "BF16":
			data = binary.LittleEndian.AppendUint16(data, uint16(math.Float32bits(float32(x))>>16))
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

// e4m3 is a code near a number, never NaN: 3 bits behind the leading one are cut off.
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
	for code, v := range weights.E2M1 {
		if math.Abs(float64(v)-x) < math.Abs(float64(weights.E2M1[best])-x) {
			best = byte(code)
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
