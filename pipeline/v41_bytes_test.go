package pipeline_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// TestEngineBytesV41 demands that caches of random models hold the bytes that the definition keeps,
// but for codes that an order of sums may move: two rows, or one in 50.
func TestEngineBytesV41(t *testing.T) {
	if os.Getenv("VKMLA_TEST_FULL") != "1" {
		t.Skip("VKMLA_TEST_FULL is not set")
	}
	testkit.WithoutMatrices(t)
	dev, first := testkit.Device(t), testkit.Seed(t)
	for seed := first; seed < first+8; seed++ {
		rng := rand.New(rand.NewPCG(seed, 42))
		c, m, err := fakemodel.RandomV41(rng)
		require.NoError(t, err)
		_, layers := opened(t, dev, m)
		tokens, prompt := 40+rng.IntN(60), rng.IntN(40)
		var hidden [][]float32
		for range layers {
			hidden = append(hidden, fakemodel.RandomHidden(rng, tokens, c.Hidden))
		}
		for _, records := range []model.Records{model.RecordsV41, model.RecordsV4} {
			t.Run(fmt.Sprint(seed, records), func(t *testing.T) {
				e := engine(t, dev, c, layers, options{MaxTokens: tokens, Records: records})
				s := must[*pipeline.Session](t)(e.Open())
				for at := 0; at < tokens; {
					n := 1
					if at == 0 {
						n = max(prompt, 1)
					}
					var part [][]float32
					for _, h := range hidden {
						part = append(part, h[at*c.Hidden:(at+n)*c.Hidden])
					}
					must[[]pipeline.Appended](t)(s.Append(t.Context(), part))
					at += n
				}
				q := formula.NewSequence(c, formula.Numerics{Records: records}, m.Values)
				q.Step(hidden)
				rows, moved := comparedRows(t, e, s, c, q)
				t.Logf("%d of %d rows differ", moved, rows)
				assert.Less(t, 50*(moved-2), rows)
			})
		}
	}
}

// comparedRows says how many rows of a session's caches there are, and how many of them are not as
// the definition keeps them.
func comparedRows(t *testing.T, e *pipeline.Engine, s *pipeline.Session, c model.Config, q *formula.Sequence) (rows, moved int) {
	t.Helper()
	pools := poolNames(c)
	for i := range e.Layers() {
		window, entries, keys := q.Kept(i)
		wanted := map[model.Store][][]byte{model.StoreWindow: window, model.StoreEntries: entries, model.StoreKeys: keys}
		for _, p := range c.Layers[i].Pools {
			for store, want := range wanted {
				if !slices.Contains(p.Stores, store) {
					continue
				}
				pool, place := places(e.Caches(i), store)
				data := testkit.Download[byte](t, pool)
				for at, row := range want {
					page := s.PageOf(slices.Index(pools, p.Name), at/p.Page)
					if page < 0 {
						continue // of a window, given back
					}
					numbers, scales := place(page*p.Page + at%p.Page)
					n := len(row) - scaleBytes(e.Caches(i), store)
					if rows++; !bytes.Equal(row[:n], data[numbers:][:n]) || !bytes.Equal(row[n:], data[scales:][:len(row)-n]) {
						moved++
					}
				}
			}
		}
	}
	return rows, moved
}
