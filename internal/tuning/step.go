package tuning

import (
	"math"
	"time"

	"github.com/vkmla/vkmla/vk"
)

// Step holds the rates by which the launches of a step are divided into submissions before their
// times are known. Too low ones cost submissions in the first step of a size, too high ones let a
// slow device's driver stop it.
type Step struct {
	// UnitRate is the least number of multiply-adds that a compute unit makes in a microsecond.
	UnitRate float64

	// Bandwidth is the least number of bytes that the device reads and writes in a microsecond.
	Bandwidth float64
}

// Time estimates how long a launch takes at most.
func (p *Profile) Time(a *vk.Adapter, w vk.Work) time.Duration {
	units := float64(p.Device.WorkgroupsOf(a, 1))
	us := w.Products/(p.Step.UnitRate*units) + float64(w.Bytes)/p.Step.Bandwidth
	return time.Duration(min(us*1000, math.MaxInt64/2))
}

// Pieces is into how many pieces such a launch is divided, for none to take longer than it may.
func (p *Profile) Pieces(a *vk.Adapter, w vk.Work, most time.Duration) int {
	return int(min(math.Ceil(float64(p.Time(a, w))/float64(max(1, most))), vk.MaxPieces))
}
