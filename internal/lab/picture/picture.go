// Package picture draws times: a roofline, and bars divided into parts, for pages that need nothing
// beside themselves.
package picture

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Limits are those of a device: bytes read plus written, and the rate of its products.
type Limits struct {
	CopyGBs      float64
	MatrixTFLOPs float64
	MatrixKind   string
}

// Group has one colour and one scale, such as a step.
type Group struct {
	Name string
	Bars []Bar
}

// Bar is a time in microseconds, beside the least that it could be, 0 where that is not known.
type Bar struct {
	Name  string
	US    float64
	Limit float64
	Parts []Part // what it consists of, in proportion; nil: of itself
}

// Part is a part of a bar. One with products and bytes has a place under the roofline.
type Part struct {
	Name  string
	US    float64
	Share float64 // of the limit
	Flop  float64
	Bytes float64
}

// share returns the part of the limit that a bar reaches.
func (b Bar) share() float64 { return b.Limit / b.US }

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

// TextBox returns what a text covers whose left end and base line are at x, y.
func TextBox(x, y float64, text string) Rect {
	return Rect{x, y - fontSize, x + textWidth(text), y + 3}
}

func (l label) box() Rect { return TextBox(l.X, l.Y, l.Text) }

// Rect is a part of a picture.
type Rect struct{ X0, Y0, X1, Y1 float64 }

// Meets reports whether the two have a place in common.
func (a Rect) Meets(b Rect) bool { return a.X0 < b.X1 && b.X0 < a.X1 && a.Y0 < b.Y1 && b.Y0 < a.Y1 }

// Inside reports whether all of a is in b.
func (a Rect) Inside(b Rect) bool {
	return a.X0 >= b.X0 && a.Y0 >= b.Y0 && a.X1 <= b.X1 && a.Y1 <= b.Y1
}

// key is a name in a legend with its colour, which is a number of the page's style.
type key struct {
	Name   string
	Colour int
}

// colours counts the colours of the page's style.
const colours = 6

// Roofline is the picture of operations by intensity and rate under the limits.
type Roofline struct {
	Width, Height float64
	Plot          Rect
	GridX, GridY  []tick
	Roof          string // points of a line
	Labels        []label
	Points        []point
	Legend        []key
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

// DrawRoofline makes the picture, nil without limits or products.
func DrawRoofline(l Limits, groups []Group) *Roofline {
	if !(l.CopyGBs > 0) || !(l.MatrixTFLOPs > 0) {
		return nil
	}
	p, ok := &Roofline{}, false
	ridge := l.MatrixTFLOPs * 1e3 / l.CopyGBs // FLOP a byte
	lowX, highX, lowY, highY := ridge/8, ridge*8, l.MatrixTFLOPs*1e3/8, l.MatrixTFLOPs*1e3
	eachProduct(groups, func(_ int, _ Bar, op Part) {
		x, y := op.Flop/op.Bytes, op.Flop/op.US/1e3
		lowX, highX, lowY, highY, ok = min(lowX, x), max(highX, x), min(lowY, y), max(highY, y), true
	})
	if !ok {
		return nil
	}
	p.Width, p.Height, p.Plot = pictureWidth, 440, Rect{70, 26, pictureWidth - 20, 388}
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
	eachProduct(groups, func(i int, b Bar, op Part) {
		p.Points = append(p.Points, point{X: x.at(op.Flop / op.Bytes), Y: y.at(op.Flop / op.US / 1e3), Colour: i % colours,
			text: op.Name, us: op.US,
			Title: fmt.Sprintf("%s, %s, %s: %s us, %.0f %% of the limit", op.Name, b.Name, groups[i].Name, Digits(op.US), 100*op.Share)})
	})
	for i, g := range groups {
		p.Legend = append(p.Legend, key{g.Name, i % colours})
	}
	p.Labels = append(p.Labels, label{p.Plot.X0, p.Height - 8, "FLOP for each byte that has to be moved"},
		label{4, 12, "GFLOP/s"})
	roof := fmt.Sprintf("%s, %s TFLOP/s", l.MatrixKind, Digits(l.MatrixTFLOPs))
	p.Labels = append(p.Labels, label{p.Plot.X1 - textWidth(roof) - 4, y.at(peak) - 5, roof})
	middle := math.Sqrt(left * ridge)
	p.Labels = append(p.Labels, label{x.at(middle) + 12, y.at(middle*l.CopyGBs) + 14, fmt.Sprintf("copy, %s GB/s", Digits(l.CopyGBs))})
	p.name()
	return p
}

// eachProduct calls f for the parts that have a place under a roofline, with the number of their
// group.
func eachProduct(groups []Group, f func(group int, b Bar, op Part)) {
	for i, g := range groups {
		for _, b := range g.Bars {
			for _, op := range b.Parts {
				if op.Flop > 0 && op.Bytes > 0 && op.US > 0 {
					f(i, b, op)
				}
			}
		}
	}
}

// named bounds the operations of a step that have their name in the picture.
const named = 4

// name puts names beside the points of the operations that take longest, each once a step,
// where there is room.
func (p *Roofline) name() {
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
func (p *Roofline) place(text string, x, y float64) {
	w := textWidth(text)
	for _, at := range []label{{x + 7, y + 4, text}, {x - 7 - w, y + 4, text}, {x - w/2, y - 8, text}, {x - w/2, y + 18, text},
		{x + 7, y - 9, text}, {x + 7, y + 17, text}, {x - 7 - w, y - 9, text}, {x - 7 - w, y + 17, text}} {
		b := at.box()
		free := b.Inside(p.Plot) && !slices.ContainsFunc(p.Labels, func(l label) bool { return b.Meets(l.box()) }) &&
			!slices.ContainsFunc(p.Points, func(o point) bool { return b.Meets(Rect{o.X - 4, o.Y - 4, o.X + 4, o.Y + 4}) })
		if free {
			p.Labels = append(p.Labels, at)
			return
		}
	}
}

// Bars is the picture of times, divided into parts.
type Bars struct {
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

// longestName bounds the letters of a bar's name that are shown.
const longestName = 48

// DrawBars makes the picture, nil without times. The bars of a group have one scale.
func DrawBars(groups []Group) *Bars {
	const right, high, line, head = 190, 22, 30, 26
	p, left := &Bars{Width: pictureWidth}, 80.0
	for _, g := range groups {
		for _, b := range g.Bars {
			left = max(left, 24+textWidth(short(b.Name)))
		}
	}
	y := 4.0
	for i, g := range groups {
		longest := 0.0
		for _, b := range g.Bars {
			longest = max(longest, b.US, b.Limit)
		}
		if !(longest > 0) {
			continue
		}
		p.Labels = append(p.Labels, label{0, y + 14, g.Name})
		y += head
		for _, b := range g.Bars {
			scale := (p.Width - left - right) / longest
			text := Digits(b.US) + " us"
			if b.Limit > 0 {
				text += fmt.Sprintf(", %.0f %% of the limit", 100*b.share())
				p.Limits = append(p.Limits, mark{left + scale*b.Limit, y - 2, y + high + 2})
			}
			p.Labels = append(p.Labels, label{16, y + 15, short(b.Name)}, label{left + scale*longest + 8, y + 15, text})
			p.parts(b, i%colours, Rect{left, y, left + scale*b.US, y + high})
			y += line
		}
		y += 6
	}
	p.Height = y
	if len(p.Parts) == 0 {
		return nil
	}
	return p
}

func short(name string) string {
	if r := []rune(name); len(r) > longestName {
		return string(r[:longestName-3]) + "..."
	}
	return name
}

// parts divides a bar as the times of its parts are to each other.
func (p *Bars) parts(b Bar, colour int, r Rect) {
	sum := 0.0
	for _, op := range b.Parts {
		sum += op.US
	}
	if !(sum > 0) {
		p.Parts = append(p.Parts, part{X: r.X0, Y: r.Y0, W: r.X1 - r.X0, H: r.Y1 - r.Y0, Colour: colour, Title: b.Name})
		return
	}
	x := r.X0
	for i, op := range b.Parts {
		w := (r.X1 - r.X0) * op.US / sum
		x0 := part{X: x, Y: r.Y0, W: w, H: r.Y1 - r.Y0, Colour: colour, Odd: i%2 == 1,
			Title: fmt.Sprintf("%s: %s us, %.0f %% of the limit", op.Name, Digits(op.US), 100*op.Share)}
		if tw := textWidth(op.Name); tw+6 <= w {
			x0.Text = &label{x + (w-tw)/2, r.Y0 + 15, op.Name}
		}
		p.Parts = append(p.Parts, x0)
		x += w
	}
}

// power returns a power of ten.
func power(exponent float64) string {
	if exponent < 0 || exponent > 5 {
		return fmt.Sprintf("1e%.0f", exponent)
	}
	return fmt.Sprintf("%.0f", math.Pow(10, exponent))
}

// Digits returns a number with three digits that count, without an exponent.
func Digits(v float64) string {
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
