package attention

import (
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// PushLayouts is for the tests outside the package, which alone can use testkit.
var PushLayouts = pushLayouts

// WithoutLanes runs f as on a device whose matrices the kernels in lanes do not know.
func WithoutLanes(f func()) {
	lanesOff = true
	defer func() { lanesOff = false }()
	f()
}

// FewParts runs f as where attn_decode_few has shared memory for so many parts of the dims.
func FewParts(n int, f func()) {
	fewParts = n
	defer func() { fewParts = D }()
	f()
}

// InLanes tells whether a decoder has attn_decode_lanes.
func InLanes(o *Decoder) bool { return len(o.tilings) > 0 && o.tilings[0].Stem != "" }

// PlainForm is a form of the builds without matrix units: two constants, invocations, bytes of shared memory.
type PlainForm struct {
	Heads, Tile, Threads uint32
	Shared               int
}

// PlainForms are those that there are.
func PlainForms() (list []PlainForm) {
	for _, f := range plainForms {
		list = append(list, PlainForm{uint32(f.heads), uint32(f.tile), uint32(f.threads()), f.sharedBytes()})
	}
	return list
}

// MergeVariants are the builds of attn_merge.
var MergeVariants = mergeVariants

// Merge joins parts [T, splits, H, 512] with one build of attn_merge.
func Merge(dev *vk.Device, variant string, rec *vk.Recorder, ml, out tensor.Tensor, a DecodeArgs, top tensor.Tensor) error {
	m, err := newMerge(dev, variant)
	if err != nil {
		return err
	}
	return m.record(rec, ml.View(), out.View(), out.Shape[1], a.Sink, a.Out, a.LSE, top, a.Turn)
}
