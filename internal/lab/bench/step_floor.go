package bench

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// reading is a launch that only reads, in the place of one of a step.
type reading struct {
	waits bool    // for all that is recorded before it
	bytes float64 // of an operation's first launch all that it has to move, of others none
}

// skeleton returns what is left of a step that computes nothing: a launch that reads for each of
// those that the engine recorded, in the same levels. Operations of a layer that have no
// launches of their own, as norms that are part of a product, are read with its first
// product: what is read is what the step's limit counts.
func (s *stepRun) skeleton(shape stepShape, list []vk.Section, work func(shape stepShape, layer int) map[string]Work) (all []reading) {
	recorded := map[opKey]bool{}
	s.split(shape, list, func(_ int, k opKey, x vk.Section) {
		for _, op := range opsOf(x.Name) {
			recorded[opKey{k.kind, op}] = true
		}
	})
	// Of the layer, what is still to be read. Drafts wait for the step that they are after.
	last, waits, left := s.first(shape)-1, shape.draft, map[string]float64{}
	s.split(shape, list, func(layer int, k opKey, x vk.Section) {
		if layer > last {
			last, left = layer, map[string]float64{}
			for op, w := range work(shape, layer) {
				if !recorded[opKey{k.kind, op}] {
					op = firstSection
				}
				left[op] += w.Bytes()
			}
		}
		bytes := 0.0
		for _, op := range opsOf(x.Name) {
			bytes += left[op]
			delete(left, op)
		}
		if x.Name == "between" {
			bytes = s.chain.bytes(shape.tokens())
		}
		at := x.Waits
		for i := range x.Dispatches {
			for ; len(at) > 0 && at[0] <= i; at = at[1:] {
				waits = true
			}
			all = append(all, reading{waits, bytes})
			waits, bytes = false, 0
		}
		waits = waits || len(at) > 0
	})
	return all
}

// bytes returns what the kernel between layers moves for a number of tokens.
func (c *chain) bytes(tokens int) float64 {
	return float64(tokens*c.width) * (2 + 4 + 4 + 2) // output, residual, residual, input
}

// fewestWaits keeps of two recordings of steps the one whose launches wait less often: the
// first one of a step is submitted operation by operation.
func fewestWaits(a, b [][]vk.Section) [][]vk.Section {
	count := func(lists [][]vk.Section) (n int) {
		for _, x := range slices.Concat(lists...) {
			n += len(x.Waits)
		}
		return n
	}
	if a == nil || count(b) < count(a) {
		return b
	}
	return a
}

// chainedSections returns the sections of a step in which layers depend on each other.
func (s *stepRun) chainedSections() (recorded [][]vk.Section, err error) {
	s.chain.on = true
	defer func() { s.chain.on = false }()
	if err := s.engine.SetTiming(s.ctx, pipeline.TimingSections); err != nil {
		return nil, err
	}
	for range recordings {
		if _, _, err := s.step(func(lists [][]vk.Section) error {
			recorded = fewestWaits(recorded, lists)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return recorded, nil
}

// timeFloors fills in what launches take that only read the bytes of a step, in its levels.
// Where the device has no memory left for what they read, there are none.
func (s *stepRun) timeFloors(recorded, chained [][]vk.Section) error {
	read, err := openReader(s.ctx, s.dev)
	if read == nil || err != nil {
		return err
	}
	return errors.Join(s.timeReadings(read, s.skeletons(recorded), &s.row.Floor),
		s.timeReadings(read, s.skeletons(chained), &s.row.ChainedFloor), read.close())
}

// skeletons returns those of a step and the drafts after it.
func (s *stepRun) skeletons(recorded [][]vk.Section) (all []reading) {
	for i, shape := range s.shapes() {
		all = append(all, s.skeleton(shape, recorded[i], s.layerWork)...)
	}
	return all
}

// timeReadings times the launches in one submission, again and again, as steps are.
func (s *stepRun) timeReadings(read *reader, all []reading, to *Time) error {
	cmd, err := recorded(s.dev, func(rec *vk.Recorder) error {
		if _, err := rec.Timestamp(); err != nil {
			return err
		}
		for _, x := range all {
			if x.waits {
				if err := door.Separate(rec); err != nil {
					return err
				}
			}
			if err := read.record(rec, x.bytes); err != nil {
				return err
			}
		}
		_, err := rec.Timestamp()
		return err
	})
	if err != nil {
		return err
	}
	var took []float64
	for start := time.Now(); err == nil && len(took) < s.o.Reps; {
		if err = cmd.Run(s.ctx); err != nil {
			break
		}
		var ns []float64
		if ns, err = cmd.Timestamps(); err == nil && (slow(s.dev) || time.Since(start) > wakeAfterPause) {
			took = append(took, ns[1]-ns[0])
		}
	}
	*to = summarise(took)
	return errors.Join(err, cmd.Close())
}

// opsOf returns the operations that share a section: "wo_a, wo_b".
func opsOf(section string) []string { return strings.Split(section, ", ") }
