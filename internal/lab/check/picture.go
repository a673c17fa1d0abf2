package check

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/vkmla/vkmla/internal/lab/bench"
)

// Pictures are in units of their viewBox. Text is set in letters of fontSize, which are at most
// letter wide on average.
const (
	pictureWidth = 860
	fontSize     = 11
	letter       = 6.4
)

// textWidth is about how wide a text is.
func textWidth(s string) float64 { return letter * float64(len([]rune(s))) }

// label is a text whose left end and base line are at X, Y.
type label struct {
	X, Y float64
	Text string
}

// box is what a text covers.
func (l label) box() rect { return rect{l.X, l.Y - fontSize, l.X + textWidth(l.Text), l.Y + 3} }

type rect struct{ X0, Y0, X1, Y1 float64 }

func (a rect) meets(b rect) bool { return a.X0 < b.X1 && b.X0 < a.X1 && a.Y0 < b.Y1 && b.Y0 < a.Y1 }

func (a rect) inside(b rect) bool {
	return a.X0 >= b.X0 && a.Y0 >= b.Y0 && a.X1 <= b.X1 && a.Y1 <= b.Y1
}

// stepName names the step of a row, and its kind of layer apart.
func stepName(t bench.LayerRow) string {
	if t.Mode == "prefill" {
		return prefillOf(t.Tokens)
	}
	return decodeOf(t.Batch, t.Context)
}

// series is a step with its colour, which is a number of the page's style.
type series struct {
	Name   string
	Colour int
	rows   []bench.LayerRow
}

// seriesOf groups rows by step, in their order.
func seriesOf(times []bench.LayerRow) (list []series) {
	for _, t := range times {
		name := stepName(t)
		i := slices.IndexFunc(list, func(s series) bool { return s.Name == name })
		if i < 0 {
			i = len(list)
			list = append(list, series{Name: name, Colour: i % colours})
		}
		list[i].rows = append(list[i].rows, t)
	}
	return list
}

// colours is how many colours the page's style has.
const colours = 6

// roofline is the picture of operations by intensity and rate under the limits.
type roofline struct {
	Width, Height float64
	Plot          rect
	GridX, GridY  []tick
	Roof          string // points of a line
	Labels        []label
	Points        []point
	Legend        []series
}

type tick struct {
	At float64
	label
}

type point struct {
	X, Y   float64
	Colour int
	Title  string
	text   string
	us     float64
}

// axis maps decades to a length.
type axis struct {
	low, high float64 // log10
	from, to  float64
}

func newAxis(low, high, from, to float64) axis {
	return axis{math.Floor(math.Log10(low)), math.Ceil(math.Log10(high)), from, to}
}

func (a axis) at(v float64) float64 {
	return a.from + (math.Log10(v)-a.low)/(a.high-a.low)*(a.to-a.from)
}

// drawRoofline makes the picture; ok is false without limits or products.
func drawRoofline(l *bench.Limits, times []bench.LayerRow) (p roofline, ok bool) {
	if l == nil || l.CopyGBs <= 0 || l.MatrixTFLOPs <= 0 {
		return p, false
	}
	ridge := l.MatrixTFLOPs * 1e3 / l.CopyGBs // FLOP a byte
	lowX, highX, lowY, highY := ridge/8, ridge*8, l.MatrixTFLOPs*1e3/8, l.MatrixTFLOPs*1e3
	eachProduct(times, func(_ series, _ bench.LayerRow, op bench.OpTime) {
		x, y := op.Work.Flop/op.Work.Bytes(), op.Work.Flop/op.Time.Median/1e3
		lowX, highX, lowY, highY, ok = min(lowX, x), max(highX, x), min(lowY, y), max(highY, y), true
	})
	if !ok {
		return p, false
	}
	p.Width, p.Height, p.Plot = pictureWidth, 440, rect{70, 26, pictureWidth - 20, 388}
	x, y := newAxis(lowX*0.9, highX*1.1, p.Plot.X0, p.Plot.X1), newAxis(lowY*0.9, highY*1.5, p.Plot.Y1, p.Plot.Y0)
	for d := x.low; d <= x.high; d++ {
		text := power(d)
		at := x.at(math.Pow(10, d))
		p.GridX = append(p.GridX, tick{at, label{min(at-textWidth(text)/2, p.Width-textWidth(text)), p.Plot.Y1 + 20, text}})
	}
	for d := y.low; d <= y.high; d++ {
		text := power(d)
		at := y.at(math.Pow(10, d))
		p.GridY = append(p.GridY, tick{at, label{p.Plot.X0 - 6 - textWidth(text), at + 4, text}})
	}
	peak := l.MatrixTFLOPs * 1e3
	left := math.Pow(10, max(x.low, y.low-math.Log10(l.CopyGBs))) // where the slope comes in
	p.Roof = fmt.Sprintf("%.1f,%.1f %.1f,%.1f %.1f,%.1f", x.at(left), y.at(left*l.CopyGBs), x.at(ridge), y.at(peak),
		p.Plot.X1, y.at(peak))
	eachProduct(times, func(s series, t bench.LayerRow, op bench.OpTime) {
		p.Points = append(p.Points, point{X: x.at(op.Work.Flop / op.Work.Bytes()), Y: y.at(op.Work.Flop / op.Time.Median / 1e3),
			Colour: s.Colour, text: op.Name, us: op.Time.Median,
			Title: fmt.Sprintf("%s, %s layer, %s: %s us, %.0f %% of the limit",
				op.Name, t.Kind, s.Name, digits(op.Time.Median), 100*op.Share)})
	})
	p.Legend = seriesOf(times)
	p.Labels = append(p.Labels, label{p.Plot.X0, p.Height - 8, "FLOP for each byte that has to be moved"},
		label{4, 12, "GFLOP/s"})
	roof := fmt.Sprintf("%s, %s TFLOP/s", l.MatrixKind, digits(l.MatrixTFLOPs))
	p.Labels = append(p.Labels, label{p.Plot.X1 - textWidth(roof) - 4, y.at(peak) - 5, roof})
	middle := math.Sqrt(left * ridge)
	p.Labels = append(p.Labels, label{x.at(middle) + 12, y.at(middle*l.CopyGBs) + 14, fmt.Sprintf("copy, %s GB/s", digits(l.CopyGBs))})
	p.name()
	return p, true
}

// eachProduct calls f for the operations that have a place under a roofline.
func eachProduct(times []bench.LayerRow, f func(s series, t bench.LayerRow, op bench.OpTime)) {
	for _, s := range seriesOf(times) {
		for _, t := range s.rows {
			for _, op := range t.Ops {
				if op.Work.Flop > 0 && op.Work.Bytes() > 0 && op.Time.Median > 0 {
					f(s, t, op)
				}
			}
		}
	}
}

// named is how many operations of a step have their name in the picture.
const named = 4

// name puts names beside the points of the operations that take longest, each once a step,
// where there is room.
func (p *roofline) name() {
	seen, count := map[string]bool{}, map[int]int{}
	for _, x := range slices.SortedStableFunc(slices.Values(p.Points), func(a, b point) int { return cmp.Compare(b.us, a.us) }) {
		key := fmt.Sprint(x.Colour, x.text)
		if seen[key] || count[x.Colour] == named {
			continue
		}
		seen[key] = true
		count[x.Colour]++
		p.place(x.text, x.X, x.Y)
	}
}

// place puts a text beside a point, if there is room.
func (p *roofline) place(text string, x, y float64) {
	w := textWidth(text)
	for _, at := range []label{{x + 7, y + 4, text}, {x - 7 - w, y + 4, text}, {x - w/2, y - 8, text}, {x - w/2, y + 18, text},
		{x + 7, y - 9, text}, {x + 7, y + 17, text}, {x - 7 - w, y - 9, text}, {x - 7 - w, y + 17, text}} {
		b := at.box()
		free := b.inside(p.Plot) && !slices.ContainsFunc(p.Labels, func(l label) bool { return b.meets(l.box()) }) &&
			!slices.ContainsFunc(p.Points, func(o point) bool { return b.meets(rect{o.X - 4, o.Y - 4, o.X + 4, o.Y + 4}) })
		if free {
			p.Labels = append(p.Labels, at)
			return
		}
	}
}

// bars is the picture of the times of layers, divided into operations.
type bars struct {
	Width, Height float64
	Labels        []label
	Parts         []part
	Limits        []mark
}

type part struct {
	X, Y, W, H float64
	Colour     int
	Odd        bool
	Title      string
	Text       *label // nil where there is no room
}

type mark struct{ X, Y0, Y1 float64 }

// drawBars makes the picture; ok is false without times. The bars of a step have one scale.
func drawBars(times []bench.LayerRow) (p bars, ok bool) {
	const left, right, high, line, head = 80, 190, 22, 30, 26
	p.Width = pictureWidth
	y := 4.0
	for _, s := range seriesOf(times) {
		longest := 0.0
		for _, t := range s.rows {
			longest = max(longest, t.Time.Median, t.Limit)
		}
		if longest <= 0 {
			continue
		}
		p.Labels = append(p.Labels, label{0, y + 14, s.Name})
		y += head
		for _, t := range s.rows {
			scale := (p.Width - left - right) / longest
			p.Labels = append(p.Labels, label{16, y + 15, t.Kind},
				label{left + scale*longest + 8, y + 15, fmt.Sprintf("%s us, %.0f %% of the limit", digits(t.Time.Median), 100*t.Share)})
			p.parts(t, s.Colour, rect{left, y, left + scale*t.Time.Median, y + high})
			p.Limits = append(p.Limits, mark{left + scale*t.Limit, y - 2, y + high + 2})
			y += line
		}
		y += 6
	}
	p.Height = y
	return p, len(p.Parts) > 0
}

// parts divides a bar as the times of the operations are to each other.
func (p *bars) parts(t bench.LayerRow, colour int, r rect) {
	sum := 0.0
	for _, op := range t.Ops {
		sum += op.Time.Median
	}
	if sum <= 0 {
		p.Parts = append(p.Parts, part{X: r.X0, Y: r.Y0, W: r.X1 - r.X0, H: r.Y1 - r.Y0, Colour: colour, Title: t.Kind})
		return
	}
	x := r.X0
	for i, op := range t.Ops {
		w := (r.X1 - r.X0) * op.Time.Median / sum
		x0 := part{X: x, Y: r.Y0, W: w, H: r.Y1 - r.Y0, Colour: colour, Odd: i%2 == 1,
			Title: fmt.Sprintf("%s: %s us, %.0f %% of the limit", op.Name, digits(op.Time.Median), 100*op.Share)}
		if tw := textWidth(op.Name); tw+6 <= w {
			x0.Text = &label{x + (w-tw)/2, r.Y0 + 15, op.Name}
		}
		p.Parts = append(p.Parts, x0)
		x += w
	}
}

// power is a power of ten.
func power(exponent float64) string {
	if exponent < 0 || exponent > 5 {
		return fmt.Sprintf("1e%.0f", exponent)
	}
	return fmt.Sprintf("%.0f", math.Pow(10, exponent))
}

// digits is a number with three digits that count, without an exponent.
func digits(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
