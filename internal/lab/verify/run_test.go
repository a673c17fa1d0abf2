package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// double returns an operation without a device: it doubles numbers, and its variants
// have the faults that their names tell.
func double(name string) Op {
	out := func(c Case, by int32) Arrays {
		v := c.In["x"].I32()
		for i := range v {
			v[i] *= by
		}
		return Arrays{"y": vectors.FromI32(v, len(v))}
	}
	return Op{
		Name: name, Class: ClassExact,
		Variants: []tuning.Variant{{Name: "cm", Requires: []string{"cooperativeMatrix"}}, {Name: "base"}, {Name: "wrong"}, {Name: "panics"}, {Name: "errs"}},
		Random: func(seed uint64) []Case {
			return []Case{
				{Name: "n1", In: Arrays{"x": vectors.FromI32([]int32{int32(seed)}, 1)}},
				{Name: "n2", In: Arrays{"x": vectors.FromI32([]int32{1, 2}, 2)}},
			}
		},
		Ref: func(c Case) (Arrays, error) { return out(c, 2), nil },
		Run: func(_ context.Context, _ *vk.Device, variant string, c Case) (Arrays, error) {
			switch variant {
			case "wrong":
				return out(c, 3), nil
			case "panics":
				var none []int
				return nil, fmt.Errorf("never %d", none[c.In["x"].Len()])
			case "errs":
				return nil, errors.New("double: run:\nno")
			}
			return out(c, 2), nil
		},
		Compare: func(_ Case, got, want Arrays) Result {
			return NewComparison(ClassExact).Exact("y", got["y"], want["y"]).Result()
		},
	}
}

func rows(t *testing.T, o Options) ([]string, Summary) {
	t.Helper()
	if o.known == nil {
		o.known = map[string]Op{"double": double("double"), "twice": double("twice")}
	}
	var got []string
	last := -1
	o.Progress = func(done, total int, _, _ string) {
		assert.Equal(t, last+1, done, "progress %d of %d after %d", done, total, last)
		assert.Less(t, done, total, "progress %d of %d after %d", done, total, last)
		last = done
	}
	sum, err := Run(context.Background(), nil, o, func(r Row) {
		_, err := json.Marshal(r)
		assert.NoError(t, err, "%+v", r)
		assert.NotContains(t, r.Detail, "\n", "detail of two lines")
		got = append(got, fmt.Sprintf("%s %s %s %s", r.Op, r.Case, r.Variant, r.Status))
	})
	require.NoError(t, err)
	return got, sum
}

func TestRunRandom(t *testing.T) {
	got, sum := rows(t, Options{Ops: []string{"double"}, Cases: []string{"n2"}})
	want := []string{"double n2 cm skip", "double n2 base pass", "double n2 wrong fail", "double n2 panics fail", "double n2 errs fail"}
	assert.False(t, fmt.Sprint(got) != fmt.Sprint(want) || sum != (Summary{1, 3, 1, 0}) || sum.OK(), "%v %+v", got, sum)
	got, sum = rows(t, Options{Variants: []string{"base"}})
	require.Len(t, got, 4, "%+v", sum)
	assert.True(t, sum.OK(), "%+v", sum)
	got, sum = rows(t, Options{Variants: []string{"cm"}})
	require.Len(t, got, 4, "what is skipped altogether is not a pass: %+v", sum)
	assert.False(t, sum.OK(), "what is skipped altogether is not a pass: %+v", sum)
}

func TestRunUnknownNames(t *testing.T) {
	for _, o := range []Options{
		{Ops: []string{"double", "triple"}, Variants: []string{"base"}},
		{Cases: []string{"n1", "n9"}, Variants: []string{"base"}},
		{Variants: []string{"base", "best"}},
		{Ops: []string{"double"}, Cases: []string{"twice.n1"}},
	} {
		got, sum := rows(t, o)
		assert.False(t, sum.Missing != 1 || sum.OK(), "%+v: %v", sum, got)
	}
	other := double("other")
	other.Variants = []tuning.Variant{{Name: "else"}}
	known := map[string]Op{"double": double("double"), "other": other}
	got, sum := rows(t, Options{Ops: []string{"double", "other"}, Variants: []string{"base"}, known: known})
	assert.False(t, sum != (Summary{Pass: 2, Missing: 1}) || sum.OK(), "an operation without the variant: %v", got)
	assert.Contains(t, got, "other  base missing")
	got, sum = rows(t, Options{Cases: []string{"twice.n1"}, Variants: []string{"base"}})
	require.Len(t, got, 1, "%+v", sum)
	assert.True(t, sum.OK(), "%+v", sum)
}

func TestRunFolder(t *testing.T) {
	dir := "../../../testdata/golden"
	name := "get_compressed_slot_mapping"
	op := double(name)
	op.Variants = []tuning.Variant{{Name: "base"}}
	op.Run = func(_ context.Context, _ *vk.Device, _ string, c Case) (Arrays, error) { return c.Want, nil }
	op.Compare = func(_ Case, got, want Arrays) Result {
		return NewComparison(ClassExact).Exact("slot_mapping", got["slot_mapping"], want["slot_mapping"]).Result()
	}
	known := map[string]Op{name: op}
	archives, err := filepath.Glob(dir + "/*.npz") // one for each operation
	require.NoError(t, err)
	got, sum := rows(t, Options{Vectors: []string{dir}, known: known})
	assert.False(t, sum.Pass != 2 || sum.Missing != len(archives)-1 || sum.OK(), "%v %+v", got, sum)
	got, sum = rows(t, Options{Vectors: []string{dir, dir}, Ops: []string{name}, known: known})
	assert.True(t, sum.Pass == 4 && sum.OK(), "%v %+v", got, sum)
	got, sum = rows(t, Options{Vectors: []string{dir}, Cases: []string{"c4"}, known: known})
	require.Len(t, got, 1, "%+v", sum)
	assert.True(t, sum.OK(), "%+v", sum)
	_, err = Run(context.Background(), nil, Options{Vectors: []string{dir + "/none"}, known: known}, func(Row) { t.Error("a row") })
	assert.Error(t, err, "a folder that is not there")
}

// A recorded output that the operation does not give is named.
func TestRunUnjudged(t *testing.T) {
	op := double("double")
	op.Variants = []tuning.Variant{{Name: "base"}}
	op.Run = func(_ context.Context, _ *vk.Device, _ string, c Case) (Arrays, error) {
		return Arrays{"y": c.Want["y"]}, nil
	}
	op.Compare = func(Case, Arrays, Arrays) Result { return Result{Pass: true} }
	c := Case{Want: Arrays{"y": {}, "z": {}, "log": {}, "ref": {}},
		Role: map[string]string{"y": vectors.RoleOut, "z": vectors.RoleAfter, "log": vectors.RoleAux, "ref": vectors.RoleRef}}
	row, err := one(context.Background(), nil, job{op: op, recorded: true}, op.Variants[0], c, nil)
	require.NoError(t, err)
	require.Equal(t, Pass, row.Status, "%+v", row)
	assert.Equal(t, []string{"z"}, row.Unjudged, "%+v", row)
}

// Recorded integers may be of another width, a dimension of 1 more or less included.
func TestAlikeIntegers(t *testing.T) {
	got := Arrays{"x": vectors.FromI32([]int32{3, -1}, 2), "far": vectors.FromI32([]int32{0}, 1), "short": vectors.FromI64([]int64{9}, 1)}
	want := alike(Arrays{"x": vectors.FromI64([]int64{3, -1}, 2, 1), "far": vectors.FromI64([]int64{1 << 40}, 1), "short": vectors.FromI32([]int32{9}, 1)}, got)
	for name, same := range map[string]bool{"x": true, "far": false, "short": true} {
		r := NewComparison(ClassExact).Exact(name, got[name], want[name]).Result()
		assert.Equal(t, same, r.Pass, "%s: %+v", name, r)
	}
}

func TestRunStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	n := 0
	_, err := Run(ctx, nil, Options{known: map[string]Op{"double": double("double")}}, func(Row) { n++; cancel() })
	assert.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, 1, n)

	op := double("double") // a lost device has one row
	op.Variants = []tuning.Variant{{Name: "base"}, {Name: "other"}}
	n, op.Run = 0, func(context.Context, *vk.Device, string, Case) (Arrays, error) { return nil, vk.ErrDeviceLost }
	_, err = Run(t.Context(), nil, Options{known: map[string]Op{"double": op}}, func(Row) { n++ })
	assert.ErrorIs(t, err, vk.ErrDeviceLost)
	assert.ErrorContains(t, err, "3 of 4 rows were not run")
	assert.Equal(t, 1, n)
}

func TestRowOfInfinity(t *testing.T) {
	op := double("double")
	op.Variants = []tuning.Variant{{Name: "base"}}
	op.Compare = func(Case, Arrays, Arrays) Result { return Result{Error: math.Inf(1), Bound: math.NaN()} }
	_, sum := rows(t, Options{known: map[string]Op{"double": op}})
	assert.Equal(t, 2, sum.Fail, "%+v", sum)
}

func TestRegister(t *testing.T) {
	for _, op := range []Op{{}, {Name: "x"}} {
		assert.Error(t, guard(func() error { Register(op); return nil }), "%+v was registered", op)
	}
	for _, op := range All() {
		assert.True(t, slices.ContainsFunc(op.Variants, func(v tuning.Variant) bool { return len(v.Requires) == 0 }),
			"%s: no variant runs on every device", op.Name)
		a, b := op.RandomCases(7), op.RandomCases(7)
		require.NotEmpty(t, a, "%s: %d and %d random cases from one seed", op.Name, len(a), len(b))
		require.Len(t, a, len(b), "%s: %d and %d random cases from one seed", op.Name, len(a), len(b))
		seen := map[string]bool{}
		for i := range a {
			assert.False(t, seen[a[i].Name] || a[i].Name == "" || a[i].Op != op.Name,
				"%s: case name %q", op.Name, a[i].Name)
			seen[a[i].Name] = true
			for name, x := range a[i].In {
				if string(x.Data) != string(b[i].In[name].Data) {
					t.Errorf("%s.%s.%s is not the same from one seed", op.Name, a[i].Name, name)
				}
			}
		}
	}
}

// TestPatterns holds which names a regular expression stands for, and that others stand for
// themselves.
func TestPatterns(t *testing.T) {
	seen := map[string]bool{}
	asked := []string{"touch", "~^fused_.*(fp8|rmsnorm)$", "~nothing"}
	for name, chosen := range map[string]bool{
		"touch": true, "touching": false, "fused_q_kv_rmsnorm": true, "fused_inv_rope_fp8_quant": false,
		"fused_indexer_q_rope_quant_fp8": true, "layer": false} {
		assert.Equal(t, chosen, want(asked, name, seen), name)
	}
	assert.Equal(t, map[string]bool{"touch": true, asked[1]: true}, seen)
	assert.NoError(t, CheckPatterns("verify", "op", asked))
	err := CheckPatterns("verify", "op", []string{"~("})
	assert.ErrorIs(t, err, vk.ErrArgument)
	assert.ErrorContains(t, err, "missing closing )")
	assert.False(t, Matches("~(", "("))
	assert.False(t, Matches("touch", "touch"), "no regular expression")
}
