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

// Pictures demands that all that is drawn lies inside the pictures of a page and no text on
// another, and counts the elements by their names.
func Pictures(t *testing.T, page []byte) map[string]int {
	t.Helper()
	var frame picture.Rect
	var texts []picture.Rect
	drawn := map[string]int{}
	for _, e := range parse(t, page) {
		if e.name == "svg" {
			_, err := fmt.Sscan(e.attr["viewBox"], &frame.X0, &frame.Y0, &frame.X1, &frame.Y1)
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
			assert.True(t, r.Inside(frame), "%s %v %q at %v is not inside %v", e.name, e.attr, e.text, r, frame)
			if e.name != "text" {
				continue
			}
			for _, other := range texts {
				assert.False(t, r.Meets(other), "%q at %v lies on %v", e.text, r, other)
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
func (e *element) covers(t *testing.T) []picture.Rect {
	at := func(name string) float64 {
		v, err := strconv.ParseFloat(e.attr[name], 64)
		require.NoError(t, err, "%s of %s %v", name, e.name, e.attr)
		return v
	}
	switch e.name {
	case "text":
		return []picture.Rect{picture.TextBox(at("x"), at("y"), e.text)}
	case "circle":
		x, y := at("cx"), at("cy")
		return []picture.Rect{{X0: x - 4, Y0: y - 4, X1: x + 4, Y1: y + 4}}
	case "rect":
		x, y := at("x"), at("y")
		return []picture.Rect{{X0: x, Y0: y, X1: x + at("width"), Y1: y + at("height")}}
	case "line":
		return []picture.Rect{{X0: at("x1"), Y0: at("y1"), X1: at("x2"), Y1: at("y2")}}
	case "polyline":
		var list []picture.Rect
		for _, p := range strings.Fields(e.attr["points"]) {
			var x, y float64
			_, err := fmt.Sscanf(p, "%f,%f", &x, &y)
			require.NoError(t, err)
			list = append(list, picture.Rect{X0: x, Y0: y, X1: x, Y1: y})
		}
		return list
	}
	return nil
}
