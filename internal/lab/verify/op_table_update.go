package verify

import (
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

func init() {
	Register(Op{
		Name: "table_update", Class: ClassExact, Variants: opkit.Builds("kv_table_update"),
		Of:     Of{"cache.TableUpdate", "kv_table_update", ""},
		Random: randomTableUpdate, Ref: refBy(fields, refTableUpdate), Bind: bindBy(fields, bindTableUpdate), Compare: exactly("tables"),
	})
}

// randomTableUpdate makes lists whose counts are below, at and beyond their capacity, of words of
// which a third is not there.
func randomTableUpdate(seed uint64) []Case {
	var cases []Case
	for i, capacity := range sizes {
		for j, count := range []uint32{0, uint32(capacity), uint32(capacity) + 1, 1 << 31, uint32(capacity) / 2} {
			if j > 0 && count == 0 {
				continue // half of one
			}
			rng := rand.New(rand.NewPCG(seed, uint64(8*i+j)))
			words, list := rng.Perm(3*capacity), []uint32{count}
			for _, w := range words[:capacity] {
				list = append(list, uint32(w), rng.Uint32())
			}
			if capacity > 1 {
				list[3] = 1 << 31
			}
			table := make([]int32, 2*capacity)
			for w := range table {
				table[w] = rng.Int32()
			}
			cases = append(cases, Case{
				Name:   fmt.Sprintf("capacity%d_count%d", capacity, count),
				Params: map[string]any{},
				In:     Arrays{"list": vectors.FromU32(list, len(list)), "tables": vectors.FromI32(table, 2, capacity)},
			})
		}
	}
	return cases
}

type tableUpdateInput struct {
	List   Array `in:"list u32 *"`
	Tables Array `in:"tables i32 * *"`
}

func refTableUpdate(x tableUpdateInput) (Arrays, error) {
	after := x.Tables.I32()
	err := cache.TableUpdateRef(after, x.List.U32())
	return Arrays{"tables": vectors.FromI32(after, x.Tables.Shape...)}, err
}

func bindTableUpdate(b Build, x tableUpdateInput) (Bound, error) {
	op, err := cache.NewTableUpdate(b.Dev)
	return bound(op, err, func(r *Rig) Launch {
		a := cache.TableUpdateArgs{List: r.In(x.List, tensor.U32), Tables: r.In(x.Tables, tensor.I32)}
		return launch(op, a, outs{"tables": a.Tables})
	})
}
