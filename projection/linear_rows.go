package projection

import "github.com/vkmla/vkmla/internal/opkit"

// rowDivision is how a kernel without matrices shares rows among the rowWorkgroup invocations of a
// workgroup: `lanes` of them have `rows` rows, and read 16 bytes of each at a time.
type rowDivision struct {
	tokens, rows, lanes int // TOKENS, ROWS, LANES
	kernel              *opkit.Later
}

// maxRowSums bounds TOKENS*ROWS, the sums of an invocation.
const maxRowSums = 16

// rowTiles is how many workgroups have n rows.
func (d rowDivision) rowTiles(n int) int { return opkit.CeilDiv(n, rowWorkgroup/d.lanes*d.rows) }

// divideRows divides a layer for the tokens of a workgroup.
//
// Layers with the same division share one kernel, whose code then stays in a cache during a step.
// So the division of layers that are alike (weightFormat.alike) depends on K alone: as many lanes
// as leave each two rounds. Other layers get eight lanes, which read 128 bytes of a row at once. If
// the rows do not fill the device, more lanes share them, and then fewer rows.
func (l *linearLayer) divideRows(tokens int) rowDivision {
	p := &l.tune.Tokens1to8
	small := l.rows() <= p.SmallRows
	long := l.format.alike == alikeLong && (tokens == 1 || small) && l.cfg.K >= 2*rowWorkgroup*l.format.quad
	if (l.format.alike == alikeAlways || long) && tokens <= p.Pass && l.rows() >= p.AlikeRows {
		d := rowDivision{tokens: tokens, rows: p.Rows, lanes: rowWorkgroup}
		for d.lanes > 8 && 2*d.lanes*l.format.quad > l.cfg.K {
			d.lanes /= 2
		}
		if long && small {
			d.rows = p.RowsFew
		}
		return d
	}
	want, most := l.cfg.Workgroups*p.Threads, 8
	for most < rowWorkgroup && most*l.format.quad < l.cfg.K {
		most *= 2
	}
	lanesFor := func(rows int) int {
		lanes := 8
		for lanes < most && l.rows()/rows*lanes < want {
			lanes *= 2
		}
		return lanes
	}
	lanes := lanesFor(p.Rows)
	if l.rows()/p.Rows*lanes < want/p.FewFill || p.Rows*tokens > maxRowSums {
		return rowDivision{tokens: tokens, rows: p.RowsFew, lanes: lanesFor(p.RowsFew)}
	}
	if l.format.overlaps && tokens == 1 {
		lanes = max(8, lanes/2)
	}
	return rowDivision{tokens: tokens, rows: p.Rows, lanes: lanes}
}
