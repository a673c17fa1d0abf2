package attention_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/vk"
)

// Records that no build reads together are refused by all forms of attention.
func TestRecordsTogether(t *testing.T) {
	dev := testkit.Device(t)
	for name, r := range map[string][2]cache.Record{
		"DeepSeek-V4's with another": {cache.RecordFP8, cache.RecordV4},
		"another with DeepSeek-V4's": {cache.RecordV4, cache.RecordFP4},
		"an unknown record":          {cache.RecordFP8, 3},
	} {
		cfg := attention.DecoderConfig{Heads: 8, WindowPage: 32, CompressedPage: 64, WindowRecord: r[0], CompressedRecord: r[1]}
		_, err := attention.NewDecoder(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
		_, err = attention.NewTwoPass(dev, attention.TwoPassConfig{DecoderConfig: cfg})
		assert.ErrorIs(t, err, vk.ErrArgument, name)
		_, err = attention.NewGathered(dev, attention.GatheredConfig{Heads: 8, WindowPage: 32, CompressedPage: 64,
			WindowRecord: r[0], CompressedRecord: r[1], Rows: attention.RowConfig{Window: 9, Windows: 64, Ratio: 2, Width: 5, Entries: 64}})
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
}

// recordSet is set for pages of any record.
func recordSet(t *testing.T, record cache.Record, page, tokens int, rows []uint16) *attention.Slots {
	t.Helper()
	s, n := set(t, page, tokens, rows), len(rows)/cache.D
	s.Layout = must[cache.Layout](t)(cache.NewRecordLayout(record, page, 0))
	s.Pool = make([]byte, s.Layout.Stride*((n+5)/page+2))
	for i := range s.Pool {
		s.Pool[i] = 0xFF
	}
	slots := make([]int64, n)
	for i := range slots {
		slots[i] = int64(5 + i)
	}
	require.NoError(t, cache.InsertRef(s.Pool, s.Layout, rows, slots))
	return s
}

// A NaN anywhere in a row, a code of RecordFP8 or a scale of RecordFP4, is a NaN there in all heads
// of a token that attends it, and in nothing of others, whose rows lie beside it.
func TestDecodeRecordNaN(t *testing.T) {
	if os.Getenv("VKMLA_TEST_FULL") != "1" {
		t.Skip("VKMLA_TEST_FULL is not set")
	}
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 12))
	const heads, rows = 33, 7
	dims := []int{0, 9, 130, 255, 384, 447, 448, 511}
	for _, records := range [][2]cache.Record{{cache.RecordFP8, cache.RecordFP4}, {cache.RecordFP4, cache.RecordFP8},
		{cache.RecordFP4, cache.RecordFP4}} {
		s := step{heads: heads, q: normal(rng, (2*len(dims)+1)*heads*cache.D)}
		sets := []*attention.Slots{}
		for half, r := range records {
			x := recordSet(t, r, 32, 2*len(dims)+1, normal(rng, (len(dims)+rows)*cache.D))
			for i := range x.Indices {
				x.Indices[i] = int32(5 + len(dims) + i%rows)
			}
			for i, d := range dims { // token i of this half attends row i, NaN in dims[i]
				if r == cache.RecordFP8 {
					x.Pool[x.Layout.RowOffset(int64(5+i))+int64(d)] = 0x7F | byte(i%2)<<7
				} else {
					x.Pool[x.Layout.ScaleOffset(int64(5+i))+int64(d/16)] = 0x7F
				}
				x.Indices[(half*len(dims)+i)*x.Width+i] = int32(5 + i)
			}
			sets = append(sets, x)
		}
		s.win, s.comp = sets[0], sets[1]
		for _, v := range variants(t, dev, heads) {
			t.Run(fmt.Sprint(records, v), func(t *testing.T) {
				cfg := s.config(v)
				cfg.Workgroups, cfg.WindowRecord, cfg.CompressedRecord = 1, records[0], records[1]
				bothLayouts(t, cfg, func(t *testing.T) {
					out, _ := s.decode(t, dev, cfg)
					for i, x := range out {
						token, d := i/(heads*cache.D), i%cache.D
						nan, last := math.IsNaN(float64(numfmt.BF16Decode(x))), token == 2*len(dims)
						if last && nan || !last && d == dims[token%len(dims)] && !nan {
							t.Fatalf("token %d, head %d, dim %d: %#x", token, i/cache.D%heads, d, x)
						}
					}
				})
			})
		}
	}
}
