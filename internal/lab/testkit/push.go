package testkit

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/vkmla/vkmla/internal/spirv"
)

// ComparePush holds a Go struct against the push-constant block of a module: the same members in
// the same order, each at the same offset and of the same size, with the same name but for GLSL's
// underscores and Go's capitals. A field named _ is padding and has no counterpart.
func ComparePush(code []byte, goStruct any) error {
	m, err := spirv.Parse(code)
	if err != nil {
		return err
	}
	var have, want []string
	t := reflect.TypeOf(goStruct)
	for _, f := range reflect.VisibleFields(t) { // an embedded structure comes first
		if f.Name != "_" && !f.Anonymous {
			have = append(have, fmt.Sprintf("%s at %d, %d bytes", strings.ToLower(f.Name), f.Offset, f.Type.Size()))
		}
	}
	for _, p := range m.Push {
		want = append(want, fmt.Sprintf("%s at %d, %d bytes", strings.ToLower(strings.ReplaceAll(p.Name, "_", "")), p.Offset, p.Size))
	}
	for i := range max(len(have), len(want)) {
		h, w := append(have, "nothing")[min(i, len(have))], append(want, "nothing")[min(i, len(want))]
		if h != w {
			return fmt.Errorf("push constants: member %d: %v has %s, the shader has %s", i, t, h, w)
		}
	}
	return nil
}
