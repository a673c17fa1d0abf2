package bench

import (
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/describe"
)

// TestWidths holds that a report for people is no wider than a terminal, with long names and large
// numbers in all its columns, and whatever went wrong.
func TestWidths(t *testing.T) {
	defer describe.Fit(describe.Width)
	for _, columns := range []int{79, 100} {
		describe.Fit(columns)
		widths(t)
	}
}

func widths(t *testing.T) {
	peers, err := Peers()
	require.NoError(t, err)
	texts := map[string]string{"compare": wide(t, func(on ReportOn) (*Report[OpRow], error) { return NewCompareReport(on, peers) }),
		"layer": wide(t, NewLayerReport), "step": wide(t, NewStepReport), "prefill": wide(t, NewPrefillReport)}
	for _, s := range OpSuites {
		texts[s.Name] = wide(t, func(on ReportOn) (*Report[OpRow], error) { return NewOpReport(on, s.Name) })
	}
	for name, text := range texts {
		assert.Contains(t, strings.Join(strings.Fields(text), " "), "WRONG: ", name)
		for line := range strings.Lines(text) {
			line = strings.TrimRight(line, "\n")
			assert.LessOrEqual(t, utf8.RuneCountInString(line), describe.Width, "%s: %s", name, line)
		}
	}
}

// wide returns what a report says of rows with as much as there can be in each field.
func wide[R any](t *testing.T, start func(on ReportOn) (*Report[R], error)) string {
	rows := make([]R, 2)
	for i, status := range []string{"ok", "wrong"} {
		v := reflect.ValueOf(&rows[i]).Elem()
		fill(v)
		v.FieldByName("Status").SetString(status)
	}
	return reported(t, rows, "md", start)
}

// fill fills all fields of a value: names with long ones, numbers with large ones.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Float64:
		v.SetFloat(123456789012.5)
	case reflect.Int:
		v.SetInt(1 << 20)
	case reflect.String:
		v.SetString(strings.Repeat("dequantize_and_gather_k_cache of a long name ", 4))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0))
		fill(v.Index(1))
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]uint64{"weights of all layers": 1 << 40, "caches": 1 << 40, "steps": 1 << 40, "hidden": 1 << 40}))
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				fill(f)
			}
		}
	}
}
