package attention

import (
	"unsafe"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

type attnMergePush struct {
	Heads, Splits, Flags, TableRows uint32
}

// Flags of attn_decode, attn_prefill and attn_merge; bit 1 differs.
const (
	flagSink = 1 << 0
	flagComp = 1 << 1 // attn_decode: there is a compressed set
	flagLens = 1 << 1 // attn_prefill: there are lengths
	flagLSE  = 1 << 2
	flagMax  = 1 << 3
	flagTurn = 1 << 4 // attn_merge, attn_decode_few
)

// merge joins the partial rows of a split attention; MergeRef defines it.
type merge struct {
	dev *vk.Device
	k   []*vk.Kernel // of mergeBuilds
}

// mergeBuilds are the forms that attn_merge is built in: how many rows an invocation loads at a time,
// where one that is loaded for nothing takes as long as another, and how many of them take turns.
var mergeBuilds = []struct{ parts, ahead, groups int }{{2, 2, 1}, {16, 4, 1}, {MaxSplits, 4, 4}} // for up to so many parts

func newMerge(dev *vk.Device) (merge, error) {
	m := merge{dev: dev}
	for _, b := range mergeBuilds {
		if 128*b.groups > int(dev.Caps().MaxWorkgroupInvocations) {
			b.groups = 1
		}
		k, err := pkg.Kernel(dev, opkit.Spec{
			Stem: "attn_merge", Variant: VariantBase, Bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Write, vk.Write, vk.Write, vk.Read, vk.Read},
			PushSize: int(unsafe.Sizeof(attnMergePush{})), Constants: opkit.Words(b.ahead, b.groups),
		})
		if err != nil {
			return m, err
		}
		m.k = append(m.k, k)
	}
	return m, nil
}

// kernel is the build for so many parts.
func (m merge) kernel(splits int) *vk.Kernel {
	for i, b := range mergeBuilds {
		if splits <= b.parts {
			return m.k[i]
		}
	}
	return m.k[len(m.k)-1]
}

// record joins splits partial rows of t tokens. The tensors were checked by the
// operation that wrote the parts.
func (m merge) record(rec *vk.Recorder, ml, out vk.View, splits int, sink, dst, lse, maxLogits tensor.Tensor, turn OutputTurn) error {
	const op = "merge"
	t, heads := dst.Shape[0], dst.Shape[1]
	p := attnMergePush{Heads: uint32(heads), Splits: uint32(splits), Flags: outputFlags(sink, lse, maxLogits)}
	if !turn.IsZero() {
		p.Flags |= flagTurn
		p.TableRows = uint32(turn.Table.Shape[0])
	}
	return pkg.Dispatch(rec, op, VariantBase, vk.Dispatch{
		Kernel: m.kernel(splits), Groups: [3]uint32{uint32(heads), uint32(t), 1},
		Bind: []vk.View{out, ml, opkit.Present(m.dev, sink), dst.View(), opkit.Present(m.dev, lse), opkit.Present(m.dev, maxLogits),
			opkit.Present(m.dev, turn.Positions), opkit.Present(m.dev, turn.Table)},
		Push: vk.Bytes(&p),
	})
}

// outputFlags says which optional tensors are there.
func outputFlags(sink, lse, maxLogits tensor.Tensor) uint32 {
	return opkit.Bit(0, !sink.IsZero()) | opkit.Bit(2, !lse.IsZero()) | opkit.Bit(3, !maxLogits.IsZero())
}
