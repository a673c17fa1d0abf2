package commands

import (
	"math/bits"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline/internal/layer"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// How prompts attend rows that are gathered first. Kinds of layers differ in what their tokens
// attend, so each has a plan of its own. A step's plans go to the device with its metadata; its
// commands are those for a power of two of pieces; the last pieces may be empty.

// rowPlan is the plan of a kind of layers.
type rowPlan struct {
	attention.RowPlan
	host, device attention.PlanTensors
	staged       [3][]byte // of places, heads and runs
}

// list puts the tensors of a plan on a list.
func (p *rowPlan) list(to *attention.PlanTensors, l *memory.List, tokens int) {
	l.Add(&to.Places, tensor.I32, tokens, 4)
	l.Add(&to.Heads, tensor.I32, mostPieces(tokens), 2, 2)
	l.Add(&to.Runs, tensor.I32, attention.RunsOf(tokens), 4)
}

// gather gives a kind of layers a plan if it gathers rows.
func (b *Size) gather(k *Kind) error {
	if k.Room().Rows() == 0 {
		return nil
	}
	b.plans[k] = &rowPlan{}
	return b.z.gatherRows()
}

// mostPieces returns the most pieces of a step of `tokens` tokens, empty ones included.
func mostPieces(tokens int) int { return 1 << bits.Len(uint(tokens-1)) }

// planRows plans how the step's tokens attend gathered rows, and returns the number of pieces; 0
// where none are gathered.
func (b *Size) planRows(bySeat []int, parts []Part) (pieces int) {
	for k, p := range b.plans {
		p.Begin(k.Room())
		for seat, i := range bySeat {
			if i >= 0 {
				x := &parts[i]
				p.Add(seat, x.N, x.Length+x.N)
			}
		}
		p.End(b.Tokens)
		pieces = max(pieces, mostPieces(p.Pieces()))
	}
	b.padPieces(pieces)
	return pieces
}

// padPieces adds empty pieces to the plans, and writes them to the draft.
func (b *Size) padPieces(pieces int) {
	for _, p := range b.plans {
		p.Pad(pieces)
		for i, list := range [][][4]int32{p.Places, p.Heads, p.Runs} {
			for j, x := range list {
				for n, v := range x {
					le.PutUint32(p.staged[i][16*j+4*n:], uint32(v))
				}
			}
		}
	}
}

// Gathers reports whether some kind of layers gathers rows.
func (b *Size) Gathers() bool { return len(b.plans) > 0 }

// Pad adds empty pieces to the plans of the step that Fill wrote last.
func (b *Size) Pad(pieces int) {
	b.padPieces(pieces)
	copy(b.host.arena.Whole().Buffer.Mapped(), b.staged.all)
}

// WorstPieces returns the most pieces that a step of the size takes, however long its sessions are:
// of one session, or of as many as there can be.
func (b *Size) WorstPieces() (pieces int) {
	o := &b.z.cfg
	for k := range b.plans {
		for _, sessions := range []int{ceilDiv(b.Tokens, o.MaxTokens), min(b.Tokens, o.MaxSessions)} {
			var p attention.RowPlan
			p.Begin(k.Room())
			for row, left := 0, b.Tokens; row < sessions; row++ {
				n := min(ceilDiv(left, sessions-row), o.MaxTokens)
				p.Add(row, n, o.MaxTokens)
				left -= n
			}
			p.End(b.Tokens)
			pieces = max(pieces, mostPieces(p.Pieces()))
		}
	}
	return pieces
}

// gatherRows gives the memory for gathered rows, which all steps share. It is made when the first
// kind of layers wants it, for the largest step.
func (z *Sizes) gatherRows() error {
	if z.workspace.Shape != nil {
		return nil
	}
	rows := 0
	for i := range z.cfg.Layers {
		cfg := z.LayerConfig(i, z.cfg.MaxStep)
		rows = max(rows, cfg.Room(z.cfg.Dev).Rows())
	}
	var err error
	z.workspace, err = z.cfg.Count.in(vk.DeviceLocal).workspace.Tensor(z.cfg.Dev, "gathered rows", tensor.BF16, rows, cache.D)
	return err
}

// rowArgs adds to the arguments of a step for layers of a kind what gathering rows takes.
func (b *Size) rowArgs(a *layer.StepArgs, k *Kind, pieces int) {
	if p := b.plans[k]; p != nil {
		a.Pieces, a.Plan, a.Workspace = pieces, p.device, b.z.workspace
	}
}
