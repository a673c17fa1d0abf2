package projection

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
)

// rowDivision describes how a kernel without matrices shares rows among the rowWorkgroup
// invocations of a workgroup: `lanes` of them have `rows` rows, and read 16 bytes of each at a
// time.
type rowDivision struct {
	tokens, rows, lanes int // TOKENS, ROWS, LANES
	kernel              *opkit.Later
}

// lineLanes are the fewest lanes that share a row: they read 128 bytes of it at once, a line of
// memory.
const lineLanes = 8

// rowTiles returns the number of workgroups for n rows.
func (d rowDivision) rowTiles(n int) int { return opkit.CeilDiv(n, rowWorkgroup/d.lanes*d.rows) }

// divideRows divides a layer for the tokens of a workgroup.
//
// Layers with the same division share one kernel, whose code then stays in a cache during a step.
// So the division of layers that are alike (format.alike) depends on K alone: as many lanes as
// leave each two rounds. Other layers get lineLanes. If the rows do not fill the device, more lanes
// share them, and then fewer rows.
func (l *linearLayer) divideRows(tokens int) rowDivision {
	p := &l.tune.Tokens1to8
	small := l.rows() <= p.SmallRows
	long := l.format.alike == alikeLong && (tokens == 1 || small) && l.cfg.K >= 2*rowWorkgroup*l.format.quad
	if (l.format.alike == alikeAlways || long) && tokens <= p.Pass && l.rows() >= p.AlikeRows {
		d := rowDivision{tokens: tokens, rows: p.Rows, lanes: rowWorkgroup}
		for d.lanes > lineLanes && 2*d.lanes*l.format.quad > l.cfg.K {
			d.lanes /= 2
		}
		if long && small {
			d.rows /= 2
		}
		return d
	}
	want, most := l.cfg.Workgroups*p.Threads, lineLanes
	for most < rowWorkgroup && most*l.format.quad < l.cfg.K {
		most *= 2
	}
	lanesFor := func(rows int) int {
		lanes := lineLanes
		for lanes < most && l.rows()/rows*lanes < want {
			lanes *= 2
		}
		return lanes
	}
	lanes := lanesFor(p.Rows)
	if l.rows()/p.Rows*lanes < want/tuning.EnoughFill || tokens > p.Pass {
		return rowDivision{tokens: tokens, rows: p.Rows / 2, lanes: lanesFor(p.Rows / 2)}
	}
	if l.format.overlaps && tokens == 1 {
		lanes = max(lineLanes, lanes/2)
	}
	return rowDivision{tokens: tokens, rows: p.Rows, lanes: lanes}
}
