package pipelines

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/vkmla/vkmla/vk"
)

// GPU is what its maker publishes of one of AMD's.
type GPU struct {
	Name         string
	Chip         string  // as RADV names it
	Units        int     // compute units, of two SIMD units of 32 lanes
	GHz, GBs     float64 // clock, and bandwidth of memory
	MatrixClocks float64 // of a SIMD unit for a product of 16 x 16 x 16 with f16, with E4M3 half of it; 0: it has none
}

// GPUs are those of the model, which people run models on.
var GPUs = []GPU{
	{"Strix Halo", "strix_halo", 40, 2.9, 256, 32},
	{"RX 7900 XTX", "navi31", 96, 2.5, 960, 32},
	{"R9700", "gfx1201", 64, 2.92, 640, 16},
	{"RX 6800", "navi21", 60, 2.1, 512, 0},
}

// Clocks are those of a compute unit for some work: of its vector and matrix instructions, and of
// its shared memory.
type Clocks struct{ Issue, Shared float64 }

// Least is with all of one beside all of the other, Most with one after the other, as barriers have
// it where a unit holds one workgroup.
func (c Clocks) Least() float64 { return max(c.Issue, c.Shared) }

// Most is with one after the other.
func (c Clocks) Most() float64 { return c.Issue + c.Shared }

// clocks of a compute unit for a workgroup that goes through some code once. An instruction takes
// its clocks for each 32 invocations, whatever the size of subgroups.
func (g *GPU) clocks(k *Chosen, threads int, n Counts) Clocks {
	eight, other, _ := Conflicts(k.Accesses)
	matrix := g.MatrixClocks * 32 / max(32, float64(k.Subgroup))
	if k.codes() {
		matrix /= 2
	}
	lanes := float64(threads) / 32
	return Clocks{
		Issue:  lanes / 2 * (float64(n.Vector+n.Slow+n.Dot) + float64(n.Matrix)*matrix),
		Shared: lanes * (max(eight, 1)*float64(n.FragmentClocks) + max(other, 1)*float64(n.OtherClocks)),
	}
}

// estimate is what a kernel takes for an operation by the model.
type estimate struct {
	groups, turns float64 // workgroups, and turns of the loop of one
	turn, all     Clocks  // of a workgroup in a turn; of a compute unit
	bytes         float64 // of memory
}

// estimate of a kernel of a choice; false if tasks has none.
func (g *GPU) estimate(c *Choice, k *Chosen) (e estimate, ok bool) {
	t, l := c.task(k)
	if t == nil {
		return e, false
	}
	shares := float64(c.shares(t, l))
	groups, turns := float64(t.groups(l))/shares, t.turns(l)
	if last := len(turns) - 1; t.parted && groups < float64(g.Units) {
		parts := max(1, min(float64(g.Units)/groups, turns[last]))
		groups, turns[last] = groups*parts, turns[last]/parts
	}
	clocks := func(n Counts) Clocks { return g.clocks(k, l.of["THREADS"], n) }
	own := max(1, groups/float64(g.Units)) // workgroups of a compute unit
	return estimate{groups, multiplied(turns), clocks(k.Listing.Loop), Clocks{
		Issue:  own * k.Listing.sum(turns, func(n Counts) float64 { return clocks(n).Issue }),
		Shared: own * k.Listing.sum(turns, func(n Counts) float64 { return clocks(n).Shared }),
	}, float64(t.bytes(l)) / shares}, true
}

// estimated is the estimate of a kernel for the GPU of the adapter's chip, if it is one of the
// model.
func estimated(a *vk.Adapter, c *Choice, k *Chosen) (e estimate, ok bool) {
	for _, g := range GPUs {
		if g.is(a) && k.Listing.amd {
			return g.estimate(c, k)
		}
	}
	return e, false
}

// micros is the time of an estimate, from the least to the most.
func (g *GPU) micros(e estimate) (least, most float64) {
	memory := e.bytes / g.GBs / 1e3
	return max(e.all.Least()/g.GHz/1e3, memory), max(e.all.Most()/g.GHz/1e3, memory)
}

// sum is what instructions cost for some turns of the loop that counts and of those around it.
// Other loops have one turn whenever they are come by.
func (l *Listing) sum(turns []float64, cost func(Counts) float64) (sum float64) {
	times, inside := multiplied(turns), 0.
	for i, n := range slices.Concat([]Counts{l.Loop}, l.Around, []Counts{l.All}) {
		all := cost(n)
		sum, inside = sum+times*(all-inside), all
		if i < len(turns) {
			times /= turns[i]
		}
	}
	return sum
}

func multiplied(list []float64) float64 {
	p := 1.
	for _, n := range list {
		p *= n
	}
	return p
}

// ModelTable shows estimates for the GPU of the adapter's chip, from choices with RADV's listings:
// clocks of a workgroup for a turn of a kernel's loop, in which time all of memory's bandwidth
// moves its bytes, and its time, from the least to the most. None of it is measured.
func ModelTable(a *vk.Adapter, list []Choice) string {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"GPU", "operation", "tokens", "kernel", "workgroups", "turns", "issue of a turn", "shared of a turn",
		"memory, us", "issue, us", "shared, us", "estimate, us"})
	for _, g := range GPUs {
		if !g.is(a) {
			continue
		}
		for i := range list {
			for j := range list[i].Kernels {
				c, k := &list[i], &list[i].Kernels[j]
				e, ok := g.estimate(c, k)
				if !ok {
					continue
				}
				least, most := g.micros(e)
				row := table.Row{g.Name, c.Op, c.Tokens, k.Kernel, fmt.Sprintf("%.0f", e.groups)}
				for _, x := range []float64{e.turns, e.turn.Issue, e.turn.Shared, e.bytes / g.GBs / 1e3, e.all.Issue / g.GHz / 1e3,
					e.all.Shared / g.GHz / 1e3} {
					row = append(row, fmt.Sprintf("%.1f", x))
				}
				t.AppendRow(append(row, fmt.Sprintf("%.1f to %.1f", least, most)))
			}
		}
	}
	if t.Length() == 0 {
		return "no estimates: " + a.Name + " is none of RADV's GPUs of the model\n"
	}
	return t.RenderMarkdown() + "\n"
}

// is tells whether RADV compiles for the GPU's chip.
func (g *GPU) is(a *vk.Adapter) bool {
	return a.Driver == vk.DriverRADV && strings.Contains(strings.ToLower(a.Name), "(radv "+g.Chip+")")
}
