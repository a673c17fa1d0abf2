package testkit

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/vk"
)

// smallCase is the size of a case's inputs, in bytes, up to which it is part of the
// short tests: under the race detector references take ten times as long.
const smallCase = 1 << 17

// TestOp holds every variant of a registered operation against the recorded
// vectors in Folders and against the reference on random cases, and the reference
// against the recorded vectors. It makes a subtest for every case and variant, but for those
// variants and random cases that are without.
func TestOp(t *testing.T, name string, without ...string) {
	t.Helper()
	op, ok := verify.Lookup(name)
	require.True(t, ok, "testkit: no operation %q is registered", name)
	var variants []string
	for _, v := range op.Variants {
		if !LeftOut(v.Name) && !slices.Contains(without, v.Name) {
			variants = append(variants, v.Name)
		}
	}
	if len(variants) == 0 {
		WithoutMatrices(t)
	}
	seed := Seed(t)
	Device(t)
	for _, dir := range Folders(t) {
		set, err := vectors.Open(dir)
		require.NoError(t, err)
		if set.Cases(name) == nil {
			t.Logf("%s has no %s", dir, name)
			continue
		}
		names := set.Cases(name)
		if testing.Short() {
			if names = smallRecorded(t, set, name); len(names) == 0 {
				continue
			}
		}
		t.Run("ref/"+filepath.Base(filepath.Dir(dir)), func(t *testing.T) {
			WithoutMatrices(t)
			testRef(t, op, set, names)
		})
		t.Run(filepath.Base(filepath.Dir(dir)), func(t *testing.T) {
			run(t, shared.dev, verify.Options{Ops: []string{name}, Cases: names, Variants: variants, Vectors: []string{dir}})
		})
	}
	t.Run("random", func(t *testing.T) {
		o := verify.Options{Ops: []string{name}, Variants: variants, Seed: seed}
		if testing.Short() {
			o.Cases = small(op, seed)
		} else if len(without) > 0 {
			o.Cases = others(op, seed, without)
		}
		run(t, shared.dev, o)
	})
}

// Seed returns the seed of this run's random cases; a failing test says it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano()) & (1<<32 - 1)
	if s := os.Getenv("VKMLA_TEST_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err, "testkit: VKMLA_TEST_SEED")
		seed = v
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to repeat the random cases: VKMLA_TEST_SEED=%d", seed)
		}
	})
	return seed
}

// FurtherGolden returns the folder of further recorded vectors that VKMLA_TEST_GOLDEN names, ""
// where it names none.
func FurtherGolden(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("VKMLA_TEST_GOLDEN")
	if dir == "" {
		return ""
	}
	require.True(t, filepath.IsAbs(dir), "testkit: VKMLA_TEST_GOLDEN is %q, want an absolute path", dir)
	_, err := os.Stat(filepath.Join(dir, "manifest.json"))
	require.NoError(t, err, "testkit: VKMLA_TEST_GOLDEN")
	return dir
}

// GGUF returns the folder of GGUF files with recorded values that VKMLA_TEST_GGUF names. A test is
// skipped where it names none.
func GGUF(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("VKMLA_TEST_GGUF")
	if dir == "" {
		t.Skip("VKMLA_TEST_GGUF is not set: no recorded GGUF files")
	}
	require.True(t, filepath.IsAbs(dir), "testkit: VKMLA_TEST_GGUF is %q, want an absolute path", dir)
	_, err := os.Stat(filepath.Join(dir, "manifest.json"))
	require.NoError(t, err, "testkit: VKMLA_TEST_GGUF")
	return dir
}

// Folders returns the folders of recorded vectors: testdata/golden and, but for short tests, the
// one that VKMLA_TEST_GOLDEN names.
func Folders(t testing.TB) []string {
	dirs := []string{filepath.Join(Root(t), "testdata", "golden")}
	if more := FurtherGolden(t); more != "" && !testing.Short() {
		dirs = append(dirs, more)
	}
	return dirs
}

// smallRecorded returns the names of the recorded cases that the short tests run.
func smallRecorded(t *testing.T, set *vectors.Set, op string) []string {
	var names []string
	for _, name := range set.Cases(op) {
		c, err := set.Case(op, name)
		require.NoError(t, err)
		if inputBytes(c) <= smallCase {
			names = append(names, name)
		}
	}
	return names
}

func inputBytes(c verify.Case) (n int) {
	for _, a := range c.In {
		n += len(a.Data)
	}
	return n
}

// testRef holds the reference against recorded cases.
func testRef(t *testing.T, op verify.Op, set *vectors.Set, names []string) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			c, err := set.Case(op.Name, name)
			require.NoError(t, err)
			if c.Informational() {
				t.Skip("informational")
			}
			got, err := op.Ref(c)
			require.NoError(t, err)
			r := op.Compare(c, got, c.Want)
			assert.True(t, r.Pass, "the reference differs from the recorded kernel: %s", r.Detail)
		})
	}
}

// run makes a subtest out of every row.
func run(t *testing.T, dev *vk.Device, o verify.Options) {
	sum, err := verify.Run(t.Context(), dev, o, func(r verify.Row) {
		t.Run(strings.Trim(r.Case+"/"+r.Variant, "/"), func(t *testing.T) {
			report(t)
			switch r.Status {
			case verify.Fail, verify.Missing:
				t.Errorf("%s: %s", r.Status, r.Detail)
			case verify.Skip:
				requireCM(t, r.Variant, r.Detail)
				t.Skip(r.Detail)
			default:
				t.Log(r.Detail)
			}
		})
	})
	require.NoError(t, err)
	assert.NotEqual(t, 0, sum.Pass, "nothing passed: %+v", sum)
}

// others returns the names of the random cases but for some.
func others(op verify.Op, seed uint64, without []string) (names []string) {
	for _, c := range op.RandomCases(seed) {
		if !slices.Contains(without, c.Name) {
			names = append(names, c.Name)
		}
	}
	return names
}

// small returns the names of the random cases that the short tests run.
func small(op verify.Op, seed uint64) []string {
	var names []string
	for _, c := range op.RandomCases(seed) {
		if inputBytes(c) <= smallCase {
			names = append(names, c.Name)
		}
	}
	if len(names) == 0 { // an operation whose cases are all large still gets one
		for _, c := range op.RandomCases(seed)[:1] {
			names = append(names, c.Name)
		}
	}
	slices.Sort(names)
	return names
}
