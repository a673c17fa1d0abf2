package main

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
)

// Sizes of the picture's panels.
const (
	panelWidth, panelHeight = 280, 170
	panelGap                = 60
)

// draw draws three panels by number of clients: tokens a second, and the times of the first token
// and between tokens, p50 below p99.
func draw(rows []clientsRow) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n",
		3*(panelWidth+panelGap)+20, panelHeight+80)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	for i, p := range []struct {
		title string
		lines []func(clientsRow) float64
	}{
		{"tokens a second", []func(clientsRow) float64{func(r clientsRow) float64 { return float64(r.tokens) / r.took.Seconds() }}},
		{"first token, ms: p50, p99", []func(clientsRow) float64{func(r clientsRow) float64 { return percentile(r.first, .5) },
			func(r clientsRow) float64 { return percentile(r.first, .99) }}},
		{"between tokens, ms: p50, p99", []func(clientsRow) float64{func(r clientsRow) float64 { return percentile(r.between, .5) },
			func(r clientsRow) float64 { return percentile(r.between, .99) }}},
	} {
		panel(&b, panelGap+i*(panelWidth+panelGap), p.title, rows, p.lines)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// panel draws lines over the same places for each row, from 0 to the largest value.
func panel(b *bytes.Buffer, left int, title string, rows []clientsRow, lines []func(clientsRow) float64) {
	const top = 40
	most := 0.0
	for _, line := range lines {
		for _, r := range rows {
			most = max(most, line(r))
		}
	}
	unit := math.Pow(10, math.Floor(math.Log10(max(most, 1e-3))))
	most = math.Ceil(max(most, 1e-3)/unit) * unit
	x := func(i int) float64 { return float64(left) + (float64(i)+.5)*panelWidth/float64(len(rows)) }
	y := func(v float64) float64 { return top + panelHeight*(1-v/most) }
	fmt.Fprintf(b, `<text x="%d" y="%d" font-weight="bold">%s</text>`+"\n", left, top-16, title)
	for _, v := range []float64{0, most / 2, most} {
		fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ccc"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			left, left+panelWidth, y(v), y(v), left-4, y(v)+4, strconv.FormatFloat(v, 'f', -1, 32))
	}
	for i, r := range rows {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%d</text>`+"\n", x(i), top+panelHeight+18, r.clients)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">clients</text>`+"\n", left+panelWidth/2, top+panelHeight+34)
	for k, line := range lines {
		colour := []string{"#1f6fb2", "#c2571a"}[k]
		points := ""
		for i, r := range rows {
			points += fmt.Sprintf("%.1f,%.1f ", x(i), y(line(r)))
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x(i), y(line(r)), colour)
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", points, colour)
	}
}
