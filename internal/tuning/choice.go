package tuning

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/vkmla/vkmla/vk"
)

// Choice records the builds of kernels that a device runs, as timed on it: see package
// pipeline/internal/measure.
type Choice struct {
	Version int              `json:"version"` // ChoiceVersion
	Device  string           `json:"device"`  // and its driver, see DeviceKey
	Kernels string           `json:"kernels"` // a hash of the builds that were timed
	Date    string           `json:"date"`
	Timed   map[string]Timed `json:"timed"` // by family
}

// ChoiceVersion is that of the form of a Choice. Others are not read.
const ChoiceVersion = 2

// Families of kernels, each timed by itself.
const (
	Products = "products"
	Prefill  = "prefill"
	Decode   = "decode"
	Scores   = "scores"
)

// Families are the operations that have builds to choose from, by how they call themselves where
// they choose.
var Families = map[string]string{"linear": Products, "attn_prefill": Prefill, "attn_decode": Decode, "logits": Scores}

// Timed records the findings on a family's builds.
type Timed struct {
	Microseconds map[string]float64 `json:"microseconds"` // of the builds that gave what base does
	Failed       map[string]string  `json:"failed"`       // why a build is never to run
}

// Best lists the builds that may run, the fastest first.
func (t Timed) Best() []string {
	var list []string
	for name := range t.Microseconds {
		list = append(list, name)
	}
	slices.SortFunc(list, func(a, b string) int {
		return cmp.Or(cmp.Compare(t.Microseconds[a], t.Microseconds[b]), cmp.Compare(a, b))
	})
	return list
}

// DeviceKey names a device with the driver and the version that a choice holds for.
func DeviceKey(a *vk.Adapter) string {
	return fmt.Sprintf("%s, %s, %s %s %#x", a.Name, a.UUID, a.DriverName, a.DriverInfo, a.DriverVersion)
}

// ChoicePath is the file of a device's choice in a folder.
func ChoicePath(dir string, a *vk.Adapter) string {
	h := sha256.Sum256([]byte(DeviceKey(a)))
	return filepath.Join(dir, "builds-"+hex.EncodeToString(h[:8])+".json")
}

// LoadChoice reads what was kept of a device; false if there is nothing that can be read.
func LoadChoice(dir string, a *vk.Adapter) (c Choice, ok bool) {
	data, err := os.ReadFile(ChoicePath(dir, a))
	ok = err == nil && json.Unmarshal(data, &c) == nil && c.Version == ChoiceVersion && c.Device == DeviceKey(a)
	if !ok {
		c = Choice{}
	}
	return c, ok
}

// choices are those in use, by DeviceKey.
var (
	choices sync.Map
	anyone  atomic.Bool // has a choice
)

// Choose has the operations that are made from now on for a device keep to a choice; nil ends that.
func Choose(a *vk.Adapter, c *Choice) {
	if c == nil {
		choices.Delete(DeviceKey(a))
		return
	}
	choices.Store(DeviceKey(a), c)
	anyone.Store(true)
}

// Preferred orders the ladder of builds of an operation of a family by the choice in use for a
// device, and leaves out what failed. Builds that are not judged are as good as base, and always
// stay.
func Preferred(a *vk.Adapter, family string, ladder []vk.Variant) []vk.Variant {
	if !anyone.Load() {
		return ladder
	}
	c, ok := choices.Load(DeviceKey(a))
	if !ok {
		return ladder
	}
	t, ok := c.(*Choice).Timed[family]
	if !ok {
		return ladder
	}
	best := t.Best()
	rank := func(v vk.Variant) int {
		name := v.Name
		if !Judged(v) {
			name = "base"
		}
		if i := slices.Index(best, name); i >= 0 {
			return i
		}
		return len(best)
	}
	list := slices.DeleteFunc(slices.Clone(ladder), func(v vk.Variant) bool { return Judged(v) && t.Failed[v.Name] != "" })
	slices.SortStableFunc(list, func(x, y vk.Variant) int { return rank(x) - rank(y) })
	return list
}

// Ladder returns the order in which a device tries a family's builds where the caller names none:
// Preferred, without matrices where the profile avoids them. Operations of no family have "".
func (p *Profile) Ladder(a *vk.Adapter, family string, ladder []vk.Variant) []vk.Variant {
	ladder = Preferred(a, family, ladder)
	if !p.Device.AvoidMatrices {
		return ladder
	}
	return slices.DeleteFunc(slices.Clone(ladder), Matrices)
}

// Matrices reports whether a build multiplies cooperative matrices.
func Matrices(v vk.Variant) bool { return slices.Contains(v.Requires, "cooperativeMatrix") }

// Judged reports whether a build has to be timed: it multiplies matrices, or has dot products of
// halves. A driver may make either slower than none.
func Judged(v vk.Variant) bool {
	return Matrices(v) || slices.Contains(v.Requires, "shaderMixedFloatDotProductFloat16AccFloat32")
}
