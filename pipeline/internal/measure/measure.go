// Package measure times the builds of the hot kernels on a device without fitted numbers, checks
// what they compute, and keeps what it found in a file. A driver may offer matrices that are slower
// than none, or crash over a kernel.
package measure

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vkmla/vkmla/internal/files"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/timed"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// crashed is recorded for a build whose mark was found.
const crashed = "the program ended while it was tried"

// Builds has the operations that are made from now on for dev run the fastest builds, as they
// were timed before and kept in the folder, or as they are timed now: about a second, and what
// the driver takes to compile them. It does nothing on a device whose profile was measured. A build
// that computes something else than base is never chosen. One during which the program ends is not
// tried again: a mark is beside the file meanwhile.
//
// Errors: the context's; vk.ErrDeviceLost, vk.ErrClosed; base's; the file system's.
func Builds(ctx context.Context, dev *vk.Device, dir string) error {
	if tuning.Of(dev).Measured {
		return nil
	}
	m := measurer{dev: dev, dir: dir, sizes: sizes{tokens: 256, rows: 1024, heads: 64}}
	return m.run(ctx)
}

// sizes are those of what is timed.
type sizes struct {
	tokens int // of a product; a quarter of them attend gathered rows, a 16th has scores
	rows   int // outputs and inputs of a product, cached rows, and half of the keys; a multiple of 64
	heads  int
}

type measurer struct {
	dev *vk.Device
	dir string
	sizes
	choice timed.Builds
	began  func(family, build string) // for tests; nil: nothing
}

func (m *measurer) run(ctx context.Context) error {
	a := m.dev.Adapter()
	kernels := hash()
	c, ok := timed.Load(m.dir, a)
	if !ok || c.Kernels != kernels {
		c = timed.Builds{Version: timed.Version, Device: timed.Device(a), Kernels: kernels, Timed: map[string]tuning.Timed{}}
	}
	m.choice = c
	changed, err := m.takeMark()
	for _, t := range trials() {
		if err == nil {
			var more bool
			more, err = m.trial(ctx, t)
			changed = changed || more
		}
	}
	if changed {
		m.choice.Date = time.Now().UTC().Format(time.DateOnly)
		err = errors.Join(err, m.save())
	}
	if err != nil {
		return err
	}
	tuning.Time(m.dev, m.choice.Timed)
	return nil
}

// hash tells the builds that are timed from those of another version of the library.
func hash() string {
	h, list := sha256.New(), trials()
	for _, name := range shaders.Names() {
		if slices.ContainsFunc(list, func(t trial) bool { return strings.HasPrefix(name, t.stem) }) {
			k, _ := shaders.Get(name)
			h.Write(k.SPIRV)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func (m *measurer) save() error {
	return files.Replace(timed.Path(m.dir, m.dev.Adapter()), 0o600, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(m.choice)
	})
}

func (m *measurer) mark() string { return timed.Path(m.dir, m.dev.Adapter()) + ".trying" }

// takeMark notes what was being tried when the program ended.
func (m *measurer) takeMark() (found bool, err error) {
	text, err := os.ReadFile(m.mark())
	if err != nil {
		return false, nil
	}
	family, build, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	if slices.ContainsFunc(trials(), func(t trial) bool { return t.family == family }) { // not an older version's
		m.fail(family, build, crashed)
	}
	if err := m.save(); err != nil {
		return true, err
	}
	return true, os.Remove(m.mark())
}

func (m *measurer) of(family string) tuning.Timed {
	t, ok := m.choice.Timed[family]
	if !ok {
		t = tuning.Timed{Microseconds: map[string]float64{}, Failed: map[string]string{}}
		m.choice.Timed[family] = t
	}
	return t
}

func (m *measurer) fail(family, build, why string) {
	t := m.of(family)
	delete(t.Microseconds, build)
	t.Failed[build] = why
}

// candidates lists base and what a device can run with matrices or dot products.
func (t trial) candidates(caps *vk.Caps, avoidMatrices bool) []string {
	names := []string{"base"}
	for _, v := range t.ladder {
		if tuning.Judged(v) && !(avoidMatrices && tuning.Matrices(v)) && caps.Missing(v.Requires) == nil {
			names = append(names, v.Name)
		}
	}
	return names
}

// builds lists the candidates without a result.
func (m *measurer) builds(t trial) (list []string) {
	known := m.of(t.family)
	for _, name := range t.candidates(m.dev.Caps(), tuning.Of(m.dev).Device.AvoidMatrices) {
		if _, ok := known.Microseconds[name]; !ok && known.Failed[name] == "" {
			list = append(list, name)
		}
	}
	if len(list) > 0 && list[0] != "base" {
		list = append([]string{"base"}, list...) // for its numbers
	}
	return list
}

// trial times the builds of a family, base first.
func (m *measurer) trial(ctx context.Context, t trial) (changed bool, err error) {
	builds, known := m.builds(t), m.of(t.family)
	if len(builds) == 0 || known.Failed["base"] != "" {
		return false, nil
	}
	in, err := t.inputs(m.dev, m.sizes)
	if err != nil {
		return false, err
	}
	defer in.close()
	var want []float32
	for _, build := range builds {
		if err := m.setMark(t.family, build); err != nil {
			return changed, err
		}
		got, took, err := m.try(ctx, t, in, build)
		if errors.Is(err, vk.ErrDeviceLost) {
			return changed, err // the mark stays
		}
		if e := os.Remove(m.mark()); e != nil || err != nil && (build == "base" || ctx.Err() != nil || errors.Is(err, vk.ErrClosed)) {
			return changed, errors.Join(err, e)
		}
		if build == "base" {
			want = got
		}
		switch d := distance(got, want); {
		case err != nil:
			m.fail(t.family, build, err.Error())
		case d > farthest:
			m.fail(t.family, build, fmt.Sprintf("other numbers than base, distance %.2g", d))
		default:
			known.Microseconds[build] = took
		}
		changed = true
	}
	return changed, nil
}

// setMark says what is tried, in case that the program ends.
func (m *measurer) setMark(family, build string) error {
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(m.mark(), []byte(family+" "+build+"\n"), 0o600); err != nil {
		return err
	}
	if m.began != nil {
		m.began(family, build)
	}
	return nil
}

// try builds a kernel, runs it, and takes the shortest of a few runs, of two where they take long.
func (m *measurer) try(ctx context.Context, t trial, in *inputs, build string) (got []float32, us float64, err error) {
	const most, enough = 6, 75 * time.Millisecond
	rec, err := m.dev.NewRecorder()
	if err != nil {
		return nil, 0, err
	}
	defer rec.Close()
	for range t.launches {
		if err := t.record(m.dev, rec, in, build); err != nil {
			return nil, 0, err
		}
	}
	cmd, err := rec.End()
	if err != nil {
		return nil, 0, err
	}
	defer cmd.Close()
	// What another build left there is no result of this one.
	if err := in.out.Upload(ctx, bytes.Repeat([]byte{0xFF}, int(in.out.Bytes()))); err != nil {
		return nil, 0, err
	}
	us = math.Inf(1)
	for i, begin := 0, time.Now(); i < most && (i < 2 || time.Since(begin) < enough); i++ {
		start := time.Now()
		if err := cmd.Run(ctx); err != nil {
			return nil, 0, err
		}
		us = min(us, float64(time.Since(start))/1000/float64(t.launches))
	}
	data := make([]byte, in.out.Bytes())
	if err := in.out.Download(ctx, data); err != nil {
		return nil, 0, err
	}
	return floats(in.out, data), us, nil
}

// floats are the numbers of a tensor of bf16 or f32.
func floats(t tensor.Tensor, data []byte) []float32 {
	list := make([]float32, t.Len())
	for i := range list {
		if t.DType == tensor.F32 {
			list[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		} else {
			list[i] = numfmt.BF16Decode(binary.LittleEndian.Uint16(data[2*i:]))
		}
	}
	return list
}

// farthest is the largest distance between results: those of all builds are rounded to bf16, each
// by up to 2^-9, and operands to f16, by less. Scores are not rounded.
const farthest = 1. / 128

// distance is the length of the difference relative to that of what is wanted; infinite where a
// number is NaN or missing.
func distance(got, want []float32) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	diff, all := 0.0, 0.0
	for i, w := range want {
		d := float64(got[i]) - float64(w)
		diff, all = diff+d*d, all+float64(w)*float64(w)
	}
	if d := math.Sqrt(diff / all); !math.IsNaN(d) {
		return d
	}
	return math.Inf(1)
}
