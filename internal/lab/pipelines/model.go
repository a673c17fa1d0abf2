package pipelines

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// GPU is what its maker publishes of one of AMD's.
type GPU struct {
	Name         string
	Chips        []string // as RADV names what it compiles for
	Units        int      // compute units, of two SIMD units of 32 lanes
	GHz, GBs     float64  // clock, and bandwidth of memory
	MatrixClocks float64  // of a SIMD unit for a product of 16 x 16 x 16 with f16, with E4M3 half of it; 0: it has none
}

// GPUs are those that people run models on, by each chip that RADV knows.
var GPUs = []GPU{
	{"Strix Halo", []string{"strix1", "navi31"}, 40, 2.9, 256, 32},
	{"RX 7900 XTX", []string{"navi31"}, 96, 2.5, 960, 32},
	{"R9700", []string{"gfx1201"}, 64, 2.92, 640, 16},
	{"RX 6800", []string{"navi21"}, 60, 2.1, 512, 0},
}

// work is what an operation has to do, however it does it.
type work struct {
	products float64 // of 16 x 16 x 16
	bytes    float64 // of memory, each byte once
}

// work of a choice: attention of a window and the selected rows, scores of a context's keys or of
// candidates, products. It is false for others, which no estimate is made of.
func (c *Choice) work() (work, bool) {
	m := model.FlashConfig()
	op, v41 := strings.CutPrefix(c.Op, "v4.1 ")
	if v41 {
		m = model.FlashV41Config()
	}
	tokens := float64(c.Tokens)
	tiles := func(n int) float64 { return math.Ceil(float64(n) / 16) }
	switch op {
	case "decode", "prefill":
		rows := m.Window + m.TopK
		w := work{products: tokens * tiles(m.Heads) * tiles(rows) * 64, bytes: tokens * float64(2*2*m.Heads*512)}
		if op == "decode" {
			window, entries := m.Records.Record(model.StoreWindow), m.Records.Record(model.StoreEntries)
			w.bytes += tokens * float64(m.Window*window.SlotBytes()+m.TopK*entries.SlotBytes())
		}
		return w, true
	}
	if n := scored(m)[c.Op]; n > 0 {
		w := work{tokens * tiles(m.IndexHeads) * tiles(n) * 8, float64(n * (m.Records.Keys().RowBytes() + cache.IndexScaleBytes))}
		if op == "selection of candidates" { // tokens of a request have their own
			w.bytes *= tokens
		}
		return w, true
	}
	for _, p := range products(m) {
		if p.op == c.Op {
			rows := p.c.N * max(p.c.Groups, 1)
			return work{tiles(c.Tokens) * tiles(rows) * tiles(p.c.K), float64(p.c.Weights.Bytes(rows, p.c.K))}, true
		}
	}
	return work{}, false
}

// Clocks are those of a compute unit for some work: of its vector and matrix instructions, and of
// its shared memory.
type Clocks struct{ Issue, Shared float64 }

// Least is with all of one beside all of the other, Most with one after the other, as barriers have
// it where a unit holds one workgroup.
func (c Clocks) Least() float64 { return max(c.Issue, c.Shared) }

// Most is with one after the other.
func (c Clocks) Most() float64 { return c.Issue + c.Shared }

// clocks of a compute unit for products of a kernel's loop, if all units have as many.
func (g *GPU) clocks(k *Chosen, products float64) Clocks {
	n := k.Listing.Loop
	eight, other, _ := Conflicts(k.Accesses)
	matrix := g.MatrixClocks
	if k.codes() {
		matrix /= 2
	}
	turns := products / float64(n.Matrix*g.Units) // of subgroups, on a compute unit
	wide := max(1, float64(k.Subgroup)/32)        // a subgroup of 64 is issued twice
	return Clocks{
		Issue:  turns / 2 * (wide*float64(n.Vector+n.Dot) + float64(n.Matrix)*matrix),
		Shared: turns * wide * (max(eight, 1)*float64(n.FragmentClocks) + max(other, 1)*float64(n.OtherClocks)),
	}
}

// ModelTable shows estimates for the GPUs with the adapter's chip, from choices with RADV's
// listings: in which time all of memory's bandwidth moves an operation's bytes, and the times of
// its kernel with matrices, from the least to the most. None of it is measured. Without a kernel
// with matrices, the least is one multiply-add of each lane in a clock, or two of halves.
func ModelTable(a *vk.Adapter, list []Choice) string {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"GPU", "operation", "tokens", "kernel", "memory, us", "issue, us", "shared, us", "estimate, us"})
	for _, g := range GPUs {
		if !g.is(a) {
			continue
		}
		for i := range list {
			c := &list[i]
			w, ok := c.work()
			if !ok {
				continue
			}
			us := func(clocks float64) string { return fmt.Sprintf("%.1f", clocks/g.GHz/1e3) }
			memory, k := w.bytes/g.GBs/1e3, c.multiplies()
			row := table.Row{g.Name, c.Op, c.Tokens, "-", fmt.Sprintf("%.1f", memory), "-", "-"}
			if k != nil && g.MatrixClocks > 0 {
				x := g.clocks(k, w.products)
				row[3], row[5], row[6] = k.Kernel, us(x.Issue), us(x.Shared)
				row = append(row, us(max(x.Least(), memory*g.GHz*1e3))+" to "+us(max(x.Most(), memory*g.GHz*1e3)))
			} else {
				adds := w.products * 4096 / float64(64*g.Units)
				if c.dots() {
					adds /= 2
				}
				if c.Tokens < 16 && strings.HasPrefix(c.Op, "product") {
					adds *= float64(c.Tokens) / 16 // the others of a tile are not there
				}
				row = append(row, "from "+us(max(adds, memory*g.GHz*1e3)))
			}
			t.AppendRow(row)
		}
	}
	if t.Length() == 0 {
		return "no estimates: " + a.Name + " is none of RADV's GPUs of the model\n"
	}
	return t.RenderMarkdown() + "\n"
}

// is tells whether RADV compiles for the GPU's chip, or for one of the same instructions.
func (g *GPU) is(a *vk.Adapter) bool {
	for _, chip := range g.Chips {
		if a.Driver == vk.DriverRADV && strings.Contains(strings.ToLower(a.Name), "(radv "+chip+")") {
			return true
		}
	}
	return false
}

// dots tells whether a choice multiplies pairs of halves.
func (c *Choice) dots() bool {
	return slices.ContainsFunc(c.Kernels, func(k Chosen) bool { return k.Listing.Loop.Dot > 0 })
}

// multiplies is the kernel of a choice with a loop of matrices, nil if there is none.
func (c *Choice) multiplies() *Chosen {
	for i := range c.Kernels {
		if k := &c.Kernels[i]; k.Listing.amd && k.Listing.Loop.Matrix > 0 {
			return k
		}
	}
	return nil
}
