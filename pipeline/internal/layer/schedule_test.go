package layer

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/vary"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
)

// needs says which ops, if the layer has them, stand in a level in front of an op's.
var needs = map[op][]op{
	wqaWkv:        {codesHidden},
	wgate:         {codesHidden},
	wgateFirst:    {codesHidden},
	indexWgate:    {codesHidden},
	weightsProj:   {codesHidden},
	codesQLoRA:    {wqaWkv, inputSums, qkvNorm},
	codesO:        {attend, inverseRope},
	codesOLoRA:    {woA},
	inputSums:     {wqaWkv, wgate, wgateFirst, indexWgate},
	qkvNorm:       {wqaWkv, inputSums},
	save:          {wgate, wgateFirst, inputSums, userCommands},
	indexSave:     {indexWgate, inputSums, userCommands},
	compress:      {wgate, wgateFirst, inputSums, save, userCommands},
	indexWk:       {compress},
	indexCompress: {indexWgate, indexWk, inputSums, indexSave, userCommands},
	wqB:           {wqaWkv, inputSums, qkvNorm, codesQLoRA},
	indexWqB:      {wqaWkv, inputSums, qkvNorm, codesQLoRA},
	kvInsert:      {wqaWkv, inputSums, qkvNorm, userCommands}, // and wqB, see below
	indexQuantise: {indexWqB, weightsProj},
	indexScores:   {indexWqB, weightsProj, indexQuantise, indexCompress, userCommands},
	indexSelect:   {indexScores},
	touchPool:     {indexScores},
	attend:        {wqB, kvInsert, compress, indexSelect, userCommands},
	inverseRope:   {attend},
	woA:           {attend, inverseRope, codesO},
	woAB:          {attend, inverseRope},
	woB:           {woA, codesOLoRA},
}

// everyTraits calls f with all traits that there can be, for few and for many tokens.
func everyTraits(f func(traits)) {
	for bits := range 1 << 17 {
		b := func(i int) bool { return bits>>i&1 != 0 }
		t := traits{indexer: b(0), compresses: b(1), fusedNorm: b(2), saves: b(3), lateQueries: b(4), rawScores: b(5), touch: b(6),
			unroped: b(8), chained: b(9)}
		if b(16) && !b(15) || b(15) && !(b(0) && b(1)) {
			continue // only index keys of latents are of interest
		}
		t.latentKeys = b(15) && t.indexer && t.compresses
		t.ungated = t.latentKeys && b(16)
		t.keys, t.touches, t.joined = t.indexer && t.compresses, t.touch && b(7), t.chained && b(10)
		t.sums, t.gathers = b(13), b(14)
		if b(12) {
			t.codes = [sources]bool{true, true, !t.chained, !t.chained}
		}
		t.tokens = 1
		if b(11) {
			t.tokens = 40
		}
		f(t)
	}
}

// TestScheduleOrder demands of every layer that each op it has stands in its schedule once, and
// after what it needs.
func TestScheduleOrder(t *testing.T) {
	n := layerTuning(t, "hopper")
	everyTraits(func(x traits) {
		at := places(t, choose(&n, x), x)
		inParts(t, choose(&n, x))
		x.gatesFirst = x.tokens >= n.BesideTokens && !x.fusedNorm
		for o := range ops {
			if _, there := at[o]; there != x.has(o) {
				t.Fatalf("%+v: op %d %q: in the schedule: %v", x, o, sections[o], there)
			}
		}
		if ordered(t, at, x); x.indexer || x.compresses {
			return // layers that draft do neither
		}
		at = places(t, contexts.of(x), x)
		inParts(t, contexts.of(x))
		ordered(t, at, x)
		assert.Contains(t, at, kvInsert)
		assert.NotContains(t, at, attend)
	})
}

// inParts demands that scratch can be shared by parts of a layer: all ops of a level are of one,
// and these come in their order.
func inParts(t *testing.T, s schedule) {
	t.Helper()
	var parts []memory.Use
	for _, l := range s {
		for _, o := range l {
			if o.use() != l[0].use() {
				t.Fatalf("%q beside %q", sections[o], sections[l[0]])
			}
		}
		parts = append(parts, l[0].use())
	}
	if parts = slices.Compact(parts); slices.Contains(parts, attending) {
		require.Equal(t, []memory.Use{edges, picking, attending, edges}, parts)
	} else {
		require.Equal(t, []memory.Use{edges, picking}, parts)
	}
}

// places are the levels of a schedule's ops.
func places(t *testing.T, s schedule, x traits) map[op]int {
	at := map[op]int{}
	for i, l := range s {
		for _, o := range l {
			if _, twice := at[o]; twice {
				t.Fatalf("%+v: %q twice", x, sections[o])
			}
			at[o] = i
		}
	}
	return at
}

// ordered demands ops after what they need.
func ordered(t *testing.T, at map[op]int, x traits) {
	for o, i := range at {
		before := needs[o]
		if o == kvInsert && !x.lateQueries {
			before = append(slices.Clone(before), wqB)
		}
		for _, p := range before {
			if j, ok := at[p]; ok && j >= i {
				t.Fatalf("%+v: %q in front of %q", x, sections[o], sections[p])
			}
		}
	}
}

// TestScheduleSections demands a name for every op that launches something of the layer's.
func TestScheduleSections(t *testing.T) {
	for o := range ops {
		assert.Equal(t, o == userCommands, sections[o] == "", "op %d", o)
	}
}

func layerTuning(t *testing.T, name string) tuning.Layer {
	p, err := tuning.Named(name)
	require.NoError(t, err)
	return p.Layer
}

// plans describes the schedules of many layers on a device that grants all wants.
func plans(n *tuning.Layer) (list []string) {
	for _, tokens := range []int{1, 2, 3, 8, 16, 24, 32, 33, 64} {
		for _, pool := range []uint64{128 << 20, 300 << 20, 1500 << 20, 3 << 30} {
			for bits := range 8 {
				late, picks, joinable := bits&1 != 0, bits&2 != 0, bits&4 != 0
				w := wanted(n, tokens, pool)
				s := choose(n, traits{tokens: tokens, indexer: picks, compresses: true, keys: picks,
					fusedNorm: w.fusedNorm, saves: w.saves,
					rawScores:   w.raw,
					lateQueries: late, touch: w.touch, touches: w.touches, chained: w.chains || w.joins && joinable,
					joined: w.joins && joinable})
				list = append(list, fmt.Sprint(s))
			}
		}
	}
	return list
}

// TestTuning demands that every number of tuning.Layer changes some schedule.
func TestTuning(t *testing.T) {
	vary.Distinct(tuning.Names(), func(name string) any { return layerTuning(t, name) }, func(name string) {
		idle := vary.Idle(layerTuning(t, name), func(n *tuning.Layer) string { return fmt.Sprint(plans(n)) })
		assert.Empty(t, idle, "profile %s: numbers of Layer that decide nothing", name)
	})
}
