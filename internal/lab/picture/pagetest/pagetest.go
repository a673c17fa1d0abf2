// Package pagetest looks at pages with pictures, in tests.
package pagetest

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/picture"
)

// element is an element of a page.
type element struct {
	name string
	attr map[string]string
	text string
	in   []string // elements around it
}

// parse reads a page as strict XML and returns its elements.
func parse(t *testing.T, page []byte) (list []*element) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(page))
	var open []*element
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			require.Empty(t, open)
			return list
		}
		require.NoError(t, err)
		switch x := token.(type) {
		case xml.StartElement:
			e := &element{name: x.Name.Local, attr: map[string]string{}}
			for _, a := range x.Attr {
				e.attr[a.Name.Local] = a.Value
			}
			for _, o := range open {
				e.in = append(e.in, o.name)
			}
			open, list = append(open, e), append(list, e)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			for _, o := range open {
				o.text += string(x)
			}
		}
	}
}

var outside = regexp.MustCompile(`url\(|@import|https?://[^\s"]*`)

// Text returns all text of a page, which has to be well-formed and to need nothing beside itself.
func Text(t *testing.T, page []byte) string {
	t.Helper()
	list := parse(t, page)
	for _, e := range list {
		assert.NotContains(t, []string{"script", "link", "img", "iframe", "object", "a"}, e.name)
		for name := range e.attr {
			assert.NotContains(t, []string{"src", "href", "style", "onload", "onclick"}, name, e.name)
		}
	}
	assert.Empty(t, outside.FindAllString(strings.ReplaceAll(string(page), `xmlns="http://www.w3.org/2000/svg"`, ""), -1))
	assert.Contains(t, string(page), "prefers-color-scheme: dark")
	return list[0].text
}

type rect struct{ x0, y0, x1, y1 float64 }

func (a rect) meets(b rect) bool { return a.x0 < b.x1 && b.x0 < a.x1 && a.y0 < b.y1 && b.y0 < a.y1 }

func (a rect) inside(b rect) bool {
	return a.x0 >= b.x0 && a.y0 >= b.y0 && a.x1 <= b.x1 && a.y1 <= b.y1
}

// Pictures demands that all that is drawn lies inside the pictures of a page and no text on
// another, and counts the elements by their names.
func Pictures(t *testing.T, page []byte) map[string]int {
	t.Helper()
	var frame rect
	var texts []rect
	drawn := map[string]int{}
	for _, e := range parse(t, page) {
		if e.name == "svg" {
			_, err := fmt.Sscan(e.attr["viewBox"], &frame.x0, &frame.y0, &frame.x1, &frame.y1)
			require.NoError(t, err)
			texts = nil
			drawn["svg"]++
			continue
		}
		if !slices.Contains(e.in, "svg") {
			continue
		}
		drawn[e.name]++
		for _, r := range e.covers(t) {
			assert.True(t, r.inside(frame), "%s %v %q at %v is not inside %v", e.name, e.attr, e.text, r, frame)
			if e.name != "text" {
				continue
			}
			for _, other := range texts {
				assert.False(t, r.meets(other), "%q at %v lies on %v", e.text, r, other)
			}
			texts = append(texts, r)
		}
		if e.name == "circle" {
			assert.Contains(t, e.text, "of the limit")
		}
	}
	return drawn
}

// covers returns where something is drawn.
func (e *element) covers(t *testing.T) []rect {
	at := func(name string) float64 {
		v, err := strconv.ParseFloat(e.attr[name], 64)
		require.NoError(t, err, "%s of %s %v", name, e.name, e.attr)
		return v
	}
	switch e.name {
	case "text":
		x, y := at("x"), at("y")
		return []rect{{x, y - picture.FontSize, x + picture.TextWidth(e.text), y + 3}}
	case "circle":
		x, y := at("cx"), at("cy")
		return []rect{{x - 4, y - 4, x + 4, y + 4}}
	case "rect":
		x, y := at("x"), at("y")
		return []rect{{x, y, x + at("width"), y + at("height")}}
	case "line":
		return []rect{{at("x1"), at("y1"), at("x2"), at("y2")}}
	case "polyline":
		var list []rect
		for _, p := range strings.Fields(e.attr["points"]) {
			var x, y float64
			_, err := fmt.Sscanf(p, "%f,%f", &x, &y)
			require.NoError(t, err)
			list = append(list, rect{x, y, x, y})
		}
		return list
	}
	return nil
}
