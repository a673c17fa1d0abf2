package indexer_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestLogitsFP8(t *testing.T) { testkit.TestOp(t, "indexer_logits_fp8") }

func TestLogitsMXFP4(t *testing.T) { testkit.TestOp(t, "indexer_logits_mxfp4") }

func TestLogitsDots(t *testing.T) {
	for _, op := range []string{"indexer_logits_fp8", "indexer_logits_mxfp4"} {
		t.Run(op, func(t *testing.T) { testkit.TestDots(t, op) })
	}
}

var indexFormats = []cache.IndexKeyFormat{cache.IndexKeyFP8, cache.IndexKeyMXFP4}

// logitsPoison fills columns before a run, so that those that were not written show.
const logitsPoison = 0xFFFFFFFF

// logitsConfig is a configuration that suits the operands.
func logitsConfig(x indexer.LogitsHost, variant string) indexer.LogitsConfig {
	return indexer.LogitsConfig{Heads: x.Heads, Format: x.Layout.Format, Page: x.Layout.Page, Variant: variant}
}

// uploadLogits places operands in device memory, and columns for scores.
func uploadLogits(r *verify.Rig, x indexer.LogitsHost) indexer.LogitsArgs {
	a := verify.LogitsArgs(r, x)
	a.First, a.Out = x.First, r.Out(tensor.F32, len(x.Lens), x.Width)
	return a
}

// logits runs an operation, which a test names by how it is made.
func logits(t *testing.T, dev *vk.Device, x indexer.LogitsHost, op *indexer.Logits) []float32 {
	t.Helper()
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	a := uploadLogits(r, x)
	r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
	return must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"out": a.Out}))["out"].F32()
}

// eachLogits runs a test for every variant that the device has and that is not left out.
func eachLogits(t *testing.T, dev *vk.Device, f func(t *testing.T, variant string)) {
	for _, v := range opkit.Builds("idx_logits") {
		t.Run(v.Name, func(t *testing.T) {
			if testkit.LeftOut(v.Name) {
				t.Skip("left out")
			}
			cfg := indexer.LogitsConfig{Heads: 64, Format: cache.IndexKeyFP8, Page: 64, Variant: v.Name}
			if _, err := indexer.NewLogits(dev, cfg); errors.Is(err, vk.ErrMissingFeature) {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
			f(t, v.Name)
		})
	}
}

// slotOf returns the slot in the pool of key n of a token's request.
func slotOf(x indexer.LogitsHost, token, n int) int64 {
	page := x.Layout.Page
	return int64(x.BlockTable[int(x.TokenToReq[token])*x.TableWidth+n/page])*int64(page) + int64(n%page)
}

// Sums that are exact in any order: keys and heads that pick one number each, ReLU that drops the
// negative ones, weights of both signs, every scale kept. The reference has them, too.
func TestLogitsExact(t *testing.T) {
	dev := testkit.Device(t)
	const heads, keys = 35, 150
	x := randomHost(t, cache.IndexKeyFP8, rand.New(rand.NewPCG(2, 1)), 3, 3, heads, keys, 64)
	for i := range x.Lens {
		x.Lens[i] = keys
		for n := range keys {
			slot := slotOf(x, i, n)
			codes := x.Pool[x.Layout.RowOffset(slot):][:cache.IndexDim]
			clear(codes)
			codes[n%cache.IndexDim], codes[(n+1)%cache.IndexDim] = numfmt.E4M3Encode(1), numfmt.E4M3Encode(-2)
			// not only powers of two
			binary.LittleEndian.PutUint32(x.Pool[x.Layout.ScaleOffset(slot):], math.Float32bits(float32(n+1)*0x1p-20))
		}
	}
	for i := range x.Weights {
		x.Weights[i] = float32(i%7 - 3)
		for d := range cache.IndexDim {
			x.Q[i*cache.IndexDim+d] = numfmt.E4M3Encode(float32((i*5+d*3)%9 - 4))
		}
	}
	want := make([]float32, len(x.Lens)*keys)
	for i := range x.Lens {
		for n := range keys {
			var sum float32
			for h := range heads {
				q := func(d int) float32 { return float32(((int(i)*heads+h)*5+d%cache.IndexDim*3)%9 - 4) }
				sum += max(q(n)-2*q(n+1), 0) * x.Weights[int(i)*heads+h]
			}
			want[int(i)*keys+n] = sum * (float32(n+1) * 0x1p-20)
		}
	}
	defined := make([]float32, len(want))
	require.NoError(t, indexer.LogitsRef(x, defined))
	assert.Equal(t, want, defined, "the reference")
	eachLogits(t, dev, func(t *testing.T, variant string) {
		got := logits(t, dev, x, must[*indexer.Logits](t)(indexer.NewLogits(dev, logitsConfig(x, variant))))
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got[:8], want[:8])
		}
	})
}

// Matrices of E4M3, as RDNA4 gets them, give the result where a device has exact ones.
func TestLogitsMatrixCodes(t *testing.T) {
	a := testkit.Device(t).Adapter()
	if !a.Caps.Features["coopmat.e4m3.f32"] {
		t.Skip("no matrices of E4M3")
	}
	dev := must[*vk.Device](t)(a.Open(vk.DeviceOptions{Profile: "rdna4"}))
	t.Cleanup(func() { assert.NoError(t, dev.Close()) })
	for i, heads := range []int{64, 40, 1} {
		for _, group := range []int{1, 4} {
			x := randomHost(t, cache.IndexKeyFP8, rand.New(rand.NewPCG(testkit.Seed(t), uint64(i))), 9, 3, heads, 139, 64)
			want := make([]float32, len(x.Lens)*x.Width)
			require.NoError(t, indexer.LogitsRef(x, want))
			cfg := logitsConfig(x, opkit.CM)
			cfg.Group = group
			near(t, x, logits(t, dev, x, must[*indexer.Logits](t)(indexer.NewLogits(dev, cfg))), want)
		}
	}
	if !slices.ContainsFunc(dev.Kernels(), func(k *vk.Kernel) bool { return k.Name() == "idx_logits_codes_cm" }) {
		t.Skip("its matrices of E4M3 are not exact")
	}
}

// Every pair of E2M1 codes under scales that differ between the blocks of a row.
func TestLogitsNibbles(t *testing.T) {
	dev := testkit.Device(t)
	const keys = 16 * cache.IndexDim
	l := cache.IndexKeyLayout{Page: 64, Stride: 64 * 68, Format: cache.IndexKeyMXFP4}
	x := indexer.LogitsHost{Heads: 2, Q: make([]byte, 2*64), QScale: []byte{127, 120, 130, 125, 127, 120, 130, 125}, Weights: []float32{1, -1},
		Pool: make([]byte, keys/64*l.Stride), Layout: l, TableWidth: keys / 64, TokenToReq: []int32{0}, Lens: []int32{keys}, Width: keys}
	for i := range 64 {
		x.Q[i], x.Q[64+i] = 0x22, 0xAA // 1 and -1
	}
	want := make([]float32, keys)
	for n := range keys {
		d, code := n/16, byte(n%16)
		x.Pool[l.RowOffset(int64(n))+int64(d/2)] = code << (d % 2 * 4)
		copy(x.Pool[l.ScaleOffset(int64(n)):], []byte{122, 131, 127, 119})
		want[n] = numfmt.E2M1Decode(code) * float32(math.Exp2([]float64{-5, -3, 3, -10}[d/32]))
	}
	for i := range x.TableWidth {
		x.BlockTable = append(x.BlockTable, int32(i))
	}
	defined := make([]float32, keys)
	require.NoError(t, indexer.LogitsRef(x, defined))
	assert.Equal(t, want, defined, "the reference")
	eachLogits(t, dev, func(t *testing.T, variant string) {
		got := logits(t, dev, x, must[*indexer.Logits](t)(indexer.NewLogits(dev, logitsConfig(x, variant))))
		for n, v := range got {
			if v != want[n] {
				t.Fatalf("number %d, code %x: %g, want %g", n/16, n%16, v, want[n])
			}
		}
	})
}

// randomHost is a random case of verify as operands.
func randomHost(t *testing.T, format cache.IndexKeyFormat, rng *rand.Rand, tokens, requests, heads, keys, page int) indexer.LogitsHost {
	t.Helper()
	width := (keys + page - 1) / page
	l := must[cache.IndexKeyLayout](t)(cache.NewIndexKeyLayout(format, page, (page*132+31)/16*16))
	x := indexer.LogitsHost{Heads: heads, Layout: l, TableWidth: width, Width: keys, Pool: make([]byte, requests*width*l.Stride),
		Q: make([]byte, tokens*heads*format.RowBytes()), Weights: make([]float32, tokens*heads)}
	for _, i := range rng.Perm(requests * width) {
		x.BlockTable = append(x.BlockTable, int32(i))
	}
	// Codes of ordinary size, scales near 1.
	code := func() byte {
		if format == cache.IndexKeyMXFP4 {
			return byte(rng.UintN(256))
		}
		return numfmt.E4M3Encode(float32(rng.NormFloat64() * 8))
	}
	for i := range x.Pool {
		x.Pool[i] = code()
	}
	for slot := range int64(requests * width * page) {
		scales := x.Pool[l.ScaleOffset(slot):]
		for b := range indexer.Blocks {
			scales[b] = byte(120 + rng.UintN(16))
		}
		if format == cache.IndexKeyFP8 {
			binary.LittleEndian.PutUint32(scales, math.Float32bits(float32(0.01+rng.Float64())))
		}
	}
	for i := range x.Q {
		x.Q[i] = code()
	}
	for i := range x.Weights {
		x.Weights[i] = float32(rng.NormFloat64())
		for range indexer.Blocks {
			if format == cache.IndexKeyMXFP4 {
				x.QScale = append(x.QScale, byte(120+rng.UintN(16)))
			}
		}
	}
	for i := range tokens {
		r := i * requests / tokens
		x.TokenToReq = append(x.TokenToReq, int32(r))
		x.Lens = append(x.Lens, int32(rng.IntN(keys+1)))
	}
	x.Lens[0], x.Lens[tokens-1] = int32(keys), 0
	return x
}

// A logit has the same bits on every run, however the work is divided: by segments,
// groups of tokens, workgroups, heads to a subgroup. Without matrices too.
func TestLogitsSameBits(t *testing.T) {
	dev := testkit.Device(t)
	for _, format := range indexFormats {
		x := randomHost(t, format, rand.New(rand.NewPCG(3, uint64(format))), 13, 4, 40, 333, 64)
		eachLogits(t, dev, func(t *testing.T, variant string) {
			cfg := logitsConfig(x, variant)
			whole := logits(t, dev, x, must[*indexer.Logits](t)(indexer.NewLogits(dev, cfg)))
			compare := func(what string, y indexer.LogitsHost, got []float32) {
				for i, n := range y.Lens {
					for c := range y.Width {
						g, w := math.Float32bits(got[i*y.Width+c]), uint32(logitsPoison)
						if y.First+c < int(n) {
							w = math.Float32bits(whole[i*x.Width+y.First+c])
						}
						if g != w {
							t.Fatalf("%v, %s: token %d, entry %d: bits %08x, want %08x", format, what, i, y.First+c, g, w)
						}
					}
				}
			}
			for what, c := range map[string]indexer.LogitsConfig{
				"again": cfg, "pairs": with(cfg, 2, 0), "groups of four": with(cfg, 4, 0), "one workgroup": with(cfg, 1, 1), "many workgroups": with(cfg, 4, 1000),
			} {
				compare(what, x, logits(t, dev, x, must[*indexer.Logits](t)(indexer.NewLogits(dev, c))))
			}
			for _, s := range [][2]int{{0, 1}, {1, 64}, {63, 2}, {128, 100}, {300, 33}, {320, 200}, {333, 5}} {
				y := x
				y.First, y.Width = s[0], s[1]
				compare(fmt.Sprint("segment ", s), y, logits(t, dev, y, must[*indexer.Logits](t)(indexer.NewLogits(dev, cfg))))
			}
		})
	}
}

func with(cfg indexer.LogitsConfig, group, workgroups int) indexer.LogitsConfig {
	cfg.Group, cfg.Workgroups = group, workgroups
	return cfg
}

// The cooperative-matrix builds in every division of heads and tokens, against the
// reference; a division sums heads in an order of its own. On a CPU, which takes five
// seconds to compile one, tiles cross pages in two of them: keys are found the same way in all.
func TestLogitsTilings(t *testing.T) {
	dev := testkit.Device(t)
	for i, c := range []struct {
		format      cache.IndexKeyFormat
		heads, page int
	}{{cache.IndexKeyFP8, 64, 64}, {cache.IndexKeyMXFP4, 128, 64}, {cache.IndexKeyFP8, 40, 48}, {cache.IndexKeyFP8, 40, 64}, {cache.IndexKeyMXFP4, 1, 64}} {
		x := randomHost(t, c.format, rand.New(rand.NewPCG(4, uint64(i))), 9, 3, c.heads, 139, c.page)
		want := make([]float32, len(x.Lens)*x.Width)
		require.NoError(t, indexer.LogitsRef(x, want))
		for _, tiling := range [][2]int{{8, 1}, {16, 1}, {64, 1}, {32, 2}, {64, 4}} {
			if dev.Adapter().Type == vk.TypeCPU && c.page == 48 && tiling != [2]int{16, 1} && tiling != [2]int{32, 2} {
				continue
			}
			t.Run(fmt.Sprint(c.format, "/", c.heads, "/", c.page, "/", tiling), func(t *testing.T) {
				op, err := indexer.NewLogitsTiled(dev, logitsConfig(x, opkit.CM), tiling[0], tiling[1])
				if errors.Is(err, vk.ErrMissingFeature) {
					t.Skip(err)
				}
				require.NoError(t, err)
				near(t, x, logits(t, dev, x, op), want)
			})
		}
	}
}

// near demands defined logits within 1e-5 of the row's largest, and nothing else
// written.
func near(t *testing.T, x indexer.LogitsHost, got, want []float32) {
	t.Helper()
	for i, n := range x.Lens {
		row, largest := i*x.Width, 0.0
		for c := range min(int(n), x.Width) {
			largest = max(largest, math.Abs(float64(want[row+c])))
		}
		for c := range x.Width {
			g, w := got[row+c], want[row+c]
			if c >= int(n) {
				if math.Float32bits(g) != logitsPoison {
					t.Fatalf("token %d, entry %d was written", i, c)
				}
			} else if d := math.Abs(float64(g) - float64(w)); !(d <= 1e-5*largest) {
				t.Fatalf("token %d, entry %d: %g, want %g", i, c, g, w)
			}
		}
	}
}

// A NaN code makes its own key's logit anything and leaves all others as they are; a
// NaN scale makes a NaN, an infinite one what arithmetic gives.
func TestLogitsNaN(t *testing.T) {
	dev := testkit.Device(t)
	x := randomHost(t, cache.IndexKeyFP8, rand.New(rand.NewPCG(5, 5)), 2, 1, 64, 100, 64)
	x.Lens = []int32{100, 100}
	at := func(n int) int64 { return slotOf(x, 0, n) }
	eachLogits(t, dev, func(t *testing.T, variant string) {
		op := must[*indexer.Logits](t)(indexer.NewLogits(dev, logitsConfig(x, variant)))
		before := logits(t, dev, x, op)
		y := x
		y.Pool = slices.Clone(x.Pool)
		y.Pool[x.Layout.RowOffset(at(17))+5] = 0x7F
		y.Pool[x.Layout.RowOffset(at(70))+127] = 0xFF
		binary.LittleEndian.PutUint32(y.Pool[x.Layout.ScaleOffset(at(40)):], 0x7FC00000)
		for i, v := range logits(t, dev, y, op) {
			switch i % 100 {
			case 17, 70:
			case 40:
				if v == v {
					t.Errorf("a NaN scale gives %g", v)
				}
			default:
				if v != before[i] {
					t.Fatalf("entry %d changed from %g to %g", i%100, before[i], v)
				}
			}
		}
	})
}

func TestLogitsArguments(t *testing.T) {
	dev := testkit.Device(t)
	good := indexer.LogitsConfig{Heads: 8, Format: cache.IndexKeyMXFP4, Page: 64}
	testkit.Rejects(t, dev, indexer.NewLogits, map[string]indexer.LogitsConfig{
		"no heads":       {Format: cache.IndexKeyFP8, Page: 64},
		"too many heads": {Heads: 129, Format: cache.IndexKeyFP8, Page: 64},
		"no format":      {Heads: 8, Page: 64},
		"no page":        {Heads: 8, Format: cache.IndexKeyFP8},
		"group":          {Heads: 8, Format: cache.IndexKeyFP8, Page: 64, Group: -1},
		"workgroups":     {Heads: 8, Format: cache.IndexKeyFP8, Page: 64, Workgroups: -1},
	})
	op := must[*indexer.Logits](t)(indexer.NewLogits(dev, good))
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	a := uploadLogits(r, randomHost(t, cache.IndexKeyMXFP4, rand.New(rand.NewPCG(7, 7)), 2, 2, 8, 70, 64))
	require.NoError(t, r.Err())
	type logitsArgs = indexer.LogitsArgs
	testkit.Changes[logitsArgs]{
		"Q":                  {func(a *logitsArgs) { a.Q.Shape = []int{2, 4, 128} }},
		"BlockTable":         {func(a *logitsArgs) { a.BlockTable.Shape = []int{0, 2} }},
		"First":              {func(a *logitsArgs) { a.First = -1 }, func(a *logitsArgs) { a.First = math.MaxInt32 - 69 }},
		"Keys.Layout.Format": {func(a *logitsArgs) { a.Keys.Layout.Format = cache.IndexKeyFP8 }},
		"Keys.Layout.Page":   {func(a *logitsArgs) { a.Keys.Layout.Page = 32 }},
		"Stride":             {func(a *logitsArgs) { a.Keys.Layout.Stride += 8 }},
		"Keys.Pool":          {func(a *logitsArgs) { a.Keys.Pool.Shape = []int{1, 16} }},
		"Raw":                {func(a *logitsArgs) { a.Raw.Q = a.Q }},
	}.Refuse(t, dev, op.Record, a)
	assert.ErrorIs(t, indexer.LogitsRef(indexer.LogitsHost{}, nil), vk.ErrArgument, "the reference of nothing")
}

// cm fills matrices from registers where a device's matrices lie in lanes as that kernel wants
// them, as they do in lavapipe. It does not with pages that cut tiles, or with more heads than
// registers hold or a CPU's compiler takes.
func TestLogitsInLanes(t *testing.T) {
	dev := testkit.Device(t)
	for _, c := range []struct {
		heads, page int
		want        bool
	}{{64, 64, dev.Adapter().Type != vk.TypeCPU}, {16, 64, true}, {3, 64, true}, {65, 64, false}, {64, 3, false}, {3, 3, false}} {
		op, err := indexer.NewLogits(dev, indexer.LogitsConfig{Heads: c.heads, Format: cache.IndexKeyFP8, Page: c.page, Variant: opkit.CM})
		if errors.Is(err, vk.ErrMissingFeature) {
			t.Skip(err)
		}
		require.NoError(t, err)
		if got := indexer.InLanes(op); got && !c.want {
			t.Errorf("%d heads, pages of %d: in lanes", c.heads, c.page)
		} else if c.want && !got {
			assert.NotEqual(t, "llvmpipe", dev.Adapter().DriverName,
				"%d heads, pages of %d: not in lanes", c.heads, c.page)
			t.Logf("%d heads, pages of %d: matrices of %s lie in other lanes", c.heads, c.page, dev.Adapter().Name)
		}
	}
}
