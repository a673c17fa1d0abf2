package picture

import (
	_ "embed"
	"html/template"
)

//go:embed pictures.html
var shared string

// Page makes a template of a page, which may use "style" inside a style element, "roofline" of a
// Roofline and "bars" of Bars; both may be nil.
func Page(name, text string, funcs template.FuncMap) *template.Template {
	t := template.New(name).Funcs(funcs)
	template.Must(t.New("shared").Parse(shared))
	return template.Must(t.Parse(text))
}
