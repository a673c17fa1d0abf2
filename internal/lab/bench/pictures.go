package bench

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/picture"
)

// Picture returns the limits as pictures have them.
func (l Limits) Picture() picture.Limits {
	return picture.Limits{CopyGBs: l.CopyGBs, MatrixTFLOPs: l.MatrixTFLOPs, MatrixKind: l.MatrixKind}
}

// grouper makes groups of bars, in the order in which they come.
type grouper struct{ groups []picture.Group }

func (g *grouper) add(group string, b picture.Bar) {
	i := slices.IndexFunc(g.groups, func(x picture.Group) bool { return x.Name == group })
	if i < 0 {
		i = len(g.groups)
		g.groups = append(g.groups, picture.Group{Name: group})
	}
	g.groups[i].Bars = append(g.groups[i].Bars, b)
}

// partsOfOps are operations as parts of a bar.
func partsOfOps(ops []OpTime) (parts []picture.Part) {
	for _, op := range ops {
		parts = append(parts, picture.Part{Name: op.Name, US: op.Time.Median, Share: op.Share, Flop: op.Work.Flop, Bytes: op.Work.Bytes()})
	}
	return parts
}

// LayerGroups returns the layers of each step that has a name: a bar for each, of its operations.
func LayerGroups(rows []LayerRow, name func(LayerRow) string) []picture.Group {
	var g grouper
	for _, x := range rows {
		if x.Status == "ok" {
			g.add(name(x), picture.Bar{Name: x.Kind, US: x.Time.Median, Limit: x.Limit, Parts: partsOfOps(x.Ops)})
		}
	}
	return g.groups
}

func layerPictures(rows []LayerRow, _ Limits) []picture.Group {
	return LayerGroups(rows, func(x LayerRow) string { return fmt.Sprintf("%s, %s weights, %s", x.Model, x.Weights, x.step()) })
}

// stepPictures have a bar for each step, and below it one for each kind of layer, of its
// operations.
func stepPictures(rows []StepRow, _ Limits) []picture.Group {
	var g grouper
	for _, x := range rows {
		if x.Status != "ok" {
			continue
		}
		name := fmt.Sprintf("%s, %s weights, batch %d, context %d", x.Model, x.Weights, x.Batch, x.Context)
		g.add(name, picture.Bar{Name: "step", US: x.Time.Median, Limit: x.Limit})
		g.add(name, picture.Bar{Name: "chained", US: x.Chained.Median, Limit: x.Limit})
		for _, kind := range slices.Concat(Kinds, []string{outside}) {
			b := picture.Bar{Name: kind}
			var ops []OpTime
			for _, op := range x.Ops {
				if op.Layer == kind {
					ops = append(ops, op)
					b.US, b.Limit = b.US+op.Time.Median, b.Limit+op.Limit
				}
			}
			if b.Parts = partsOfOps(ops); len(ops) > 0 {
				g.add(name, b)
			}
		}
	}
	return g.groups
}

// shownChunks bounds the chunks of a prompt that have a bar of their own.
const shownChunks = 16

func prefillPictures(rows []PrefillRow, _ Limits) []picture.Group {
	var g grouper
	for _, x := range rows {
		if x.Status != "ok" {
			continue
		}
		name := fmt.Sprintf("%s, %s weights, %d tokens: %.4g tokens/s", x.Model, x.Weights, x.Tokens, x.TokensPerS)
		for i := 0; i < len(x.Chunks); i += (len(x.Chunks) + shownChunks - 1) / shownChunks {
			c := x.Chunks[i]
			g.add(name, picture.Bar{Name: fmt.Sprintf("tokens %d to %d", c.First, c.First+c.Tokens), US: c.Time.Median, Limit: c.Limit})
		}
	}
	return g.groups
}

func opPictures(rows []OpRow, l Limits) []picture.Group {
	var g grouper
	for _, x := range rows {
		if x.Status != "ok" {
			continue
		}
		name := x.Case
		if x.Part != "" {
			name += ", " + x.Part
		}
		limit := Work{Activations: x.Bytes, Flop: x.Flop}.Limit(l)
		part := picture.Part{Name: x.Op, US: x.Time.Median, Share: limit / x.Time.Median, Flop: x.Flop, Bytes: x.Bytes}
		g.add(x.Op, picture.Bar{Name: name, US: x.Time.Median, Limit: limit, Parts: []picture.Part{part}})
	}
	return g.groups
}

//go:embed report.html
var pageText string

var page = picture.Page("bench", pageText, template.FuncMap{"digits": picture.Digits})

// html writes the rows as a page that needs nothing beside itself: pictures, and what the
// Markdown has.
func (r *Report[R]) html() {
	var text bytes.Buffer
	md := *r
	md.w, md.format = &text, "md"
	md.markdown()
	groups := r.style.pictures(r.rows, r.limits)
	if r.err = md.err; r.err == nil {
		r.err = page.Execute(r.w, struct {
			describe.Origin
			Limits   Limits
			Roofline *picture.Roofline
			Bars     *picture.Bars
			Blocks   []block
		}{r.dev, r.limits, picture.DrawRoofline(r.limits.Picture(), groups), picture.DrawBars(groups), blocksOf(text.String())})
	}
}

// block is a paragraph, or else a table.
type block struct {
	Text string
	Head []string
	Rows [][]string
}

// blocksOf reads the Markdown that reports are written in: paragraphs, and tables of lines that
// begin with a bar.
func blocksOf(md string) (list []block) {
	var words []string
	flush := func() {
		if len(words) > 0 {
			list, words = append(list, block{Text: strings.Join(words, " ")}), nil
		}
	}
	inTable := false
	for line := range strings.Lines(md) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			if inTable = false; line == "" {
				flush()
			} else {
				words = append(words, line)
			}
			continue
		}
		flush()
		cells := strings.Split(strings.ReplaceAll(strings.TrimSuffix(line[1:], "|"), "\\|", "\x00"), "|")
		for i, c := range cells {
			cells[i] = strings.TrimSpace(strings.ReplaceAll(c, "\x00", "|"))
		}
		switch t := len(list) - 1; {
		case !inTable:
			list, inTable = append(list, block{Head: cells}), true
		case strings.Trim(strings.Join(cells, ""), "-: ") != "":
			list[t].Rows = append(list[t].Rows, cells)
		}
	}
	flush()
	return list
}
