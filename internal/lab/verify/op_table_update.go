package verify

import (
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	Register(Op{
		Name: "table_update", Class: ClassExact, Variants: cache.TableUpdateVariants,
		Random: randomTableUpdate, Ref: refTableUpdate, Bind: bindTableUpdate, Compare: exactly("tables"),
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

func readTableUpdate(c Case) (list, tables Array, err error) {
	in := c.Input()
	list, tables = in.Array("list", vectors.U32, -1), in.Array("tables", vectors.I32, -1, -1)
	return list, tables, in.Err()
}

func refTableUpdate(c Case) (Arrays, error) {
	list, tables, err := readTableUpdate(c)
	if err != nil {
		return nil, err
	}
	after := tables.I32()
	if err := cache.TableUpdateRef(after, list.U32()); err != nil {
		return nil, err
	}
	return Arrays{"tables": vectors.FromI32(after, tables.Shape...)}, nil
}

func bindTableUpdate(b Build, c Case) (Bound, error) {
	list, tables, err := readTableUpdate(c)
	if err != nil {
		return Bound{}, err
	}
	op, err := cache.NewTableUpdate(b.Dev)
	if err != nil {
		return Bound{}, err
	}
	return Bound{op.Variant(), func(r *Rig) Launch {
		a := cache.TableUpdateArgs{List: r.In(list, tensor.U32), Tables: r.In(tables, tensor.I32)}
		return Launch{Out: map[string]tensor.Tensor{"tables": a.Tables},
			Record: func(rec *vk.Recorder) error { return op.Record(rec, a) }}
	}}, nil
}
