//go:build linux

package attention_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
	"github.com/vkmla/vkmla/vk/share"
)

// guardVar tells a process of TestDecodeGuard a variant, and how many bytes its pools lack.
const guardVar = "VKMLA_TEST_GUARD"

// Nothing after a pool is read, which no value can show. Pools end where memory does, so that a
// read past them ends the process on a CPU. Where they lack their last bytes, it has to.
func TestDecodeGuard(t *testing.T) {
	dev := testkit.Device(t)
	if dev.Adapter().Type != vk.TypeCPU || len(dev.Caps().Missing([]string{"importHostMemory"})) > 0 {
		t.Skip("reads no memory of the program at its own addresses")
	}
	if variant, lack, ok := strings.Cut(os.Getenv(guardVar), " "); ok {
		decodeGuarded(t, dev, variant, must[int](t)(strconv.Atoi(lack)))
		return
	}
	self := strings.Split(string(must[[]byte](t)(os.ReadFile("/proc/self/cmdline"))), "\x00")
	require.Contains(t, self, os.Args[0])
	self = self[:slices.Index(self, os.Args[0])+1] // with the loader that scripts/newer-mesa has in front
	self = append(self, "-test.run=^TestDecodeGuard$", "-test.v")
	for _, v := range variants(t, dev, guardedHeads) {
		if strings.HasSuffix(v, opkit.Base) {
			continue // bound pools are cut at their ends
		}
		t.Run(v, func(t *testing.T) {
			for _, lack := range []int{0, 16} {
				child := exec.CommandContext(t.Context(), self[0], self[1:]...)
				child.Env = append(os.Environ(), fmt.Sprint(guardVar, "=", v, " ", lack))
				out, err := child.CombinedOutput()
				var exit *exec.ExitError
				faults := errors.As(err, &exit) && (exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGSEGV ||
					strings.Contains(string(out), "SIGSEGV"))
				if lack > 0 {
					assert.True(t, faults, "reads of %d bytes that are not there go unseen: %v, %s", lack, err, out)
					continue
				}
				require.False(t, faults, "the last of these reads past the pool: %s", out)
				require.NoError(t, err, "%s", out)
			}
		})
	}
}

const guardedHeads = 33

// decodeGuarded attends pools of all records that are of one page.
func decodeGuarded(t *testing.T, dev *vk.Device, variant string, lack int) {
	const tokens, width = 5, 37
	indices := make([]int32, tokens*width)
	for i := range indices { // slot 0 is in all pools, slot 2 in none
		choice := [tokens][]int32{{-1, 2}, {0}, {0, -1, 1, math.MaxInt32, math.MinInt32}, {1, 0, 1 << 20}, {0}}[i/width]
		indices[i] = choice[i%len(choice)]
	}
	run := func(t *testing.T, cfg attention.DecoderConfig, alone bool) {
		op := must[*attention.Decoder](t)(attention.NewDecoder(dev, cfg))
		r := verify.NewRig(t.Context(), dev)
		defer r.Close()
		set := func(record cache.Record, lens ...int32) attention.SlotSet {
			return attention.SlotSet{Cache: guardedPool(t, dev, record, lack),
				Indices: r.In(vectors.FromI32(indices, tokens, width), tensor.I32), Lens: r.In(vectors.FromI32(lens, tokens), tensor.I32)}
		}
		q := vectors.FromU16(make([]uint16, tokens*cfg.Heads*cache.D), tokens, cfg.Heads, cache.D)
		a := attention.DecodeArgs{Q: r.In(q, tensor.BF16), Window: set(cfg.WindowRecord, width, width, width, 5, 1),
			Out: r.Out(tensor.BF16, tokens, cfg.Heads, cache.D)}
		topk := 0
		if !alone {
			topk, a.Compressed = width, set(cfg.CompressedRecord, 21, width, width, width, 0)
		}
		if n := op.ScratchBytes(tokens, width, topk); n > 0 {
			a.Scratch = r.Out(tensor.F32, int(n+3)/4).View()
		}
		r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
		require.NoError(t, r.Err())
		if attention.InLanes(op) {
			lanes := func(k *vk.Kernel) bool { return strings.HasPrefix(k.Name(), "attn_decode_lanes") }
			assert.True(t, slices.ContainsFunc(dev.Kernels(), lanes), "another kernel was chosen")
		}
	}
	for _, records := range [][2]cache.Record{{cache.RecordFP4, cache.RecordFP8}, {cache.RecordFP8, cache.RecordFP4},
		{cache.RecordFP4, cache.RecordFP4}, {cache.RecordFP8, cache.RecordFP8}, {cache.RecordV4, cache.RecordV4}} {
		for _, splits := range []int{1, 2} {
			for _, alone := range []bool{false, true} { // whether there is no compressed cache
				same := records[0] == records[1]
				if alone && !same {
					continue
				}
				cfg := attention.DecoderConfig{Heads: guardedHeads, WindowPage: guardedPage(records[0]), WindowRecord: records[0],
					CompressedPage: guardedPage(records[1]), CompressedRecord: records[1], Variant: variant, Splits: splits,
					Workgroups: 1, OnDemand: true} // one workgroup at a time: as many heads in each as fit
				t.Run(subtest(records, splits, alone), func(t *testing.T) {
					if same && os.Getenv("VKMLA_TEST_FULL") != "1" { // each kernel in lanes takes 20 s to compile
						attention.WithoutLanes(func() { run(t, cfg, alone) })
						return
					}
					bothLayouts(t, cfg, func(t *testing.T) { run(t, cfg, alone) })
				})
			}
		}
	}
}

// guardedPage is the fewest slots whose bytes are a multiple of 16.
func guardedPage(record cache.Record) int { return 16 / int(record.Align()) }

// guardedPool is a pool of one page that ends, but for what it lacks, where memory does.
func guardedPool(t *testing.T, dev *vk.Device, record cache.Record, lack int) cache.KVCache {
	slots, room := guardedPage(record), int(share.HostAlignment(dev))
	l := must[cache.Layout](t)(cache.NewRecordLayout(record, slots, slots*record.SlotBytes()))
	memory := must[[]byte](t)(syscall.Mmap(-1, 0, 2*room, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON))
	t.Cleanup(func() { assert.NoError(t, syscall.Munmap(memory)) })
	b := must[*vk.Buffer](t)(share.ImportHost(dev, "guarded", memory, uint64(2*room)))
	t.Cleanup(func() { assert.NoError(t, b.Close()) })
	require.NoError(t, syscall.Mprotect(memory[room:], syscall.PROT_NONE))
	at := b.View(uint64(room-l.Stride+lack), uint64(l.Stride))
	return cache.KVCache{Pool: tensor.Of(at, tensor.U8, 1, l.Stride), Layout: l}
}
