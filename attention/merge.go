package attention

import (
	"slices"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

type attnMergePush struct {
	PartOutAddr, PartMlAddr, SinkAddr, PositionsAddr, TableAddr, DstAddr, LseAddr, MaxAddr uint64
	Heads, Splits, Flags, TableRows                                                        uint32
}

// Flags of attn_decode, attn_prefill and attn_merge; bit 1 differs.
const (
	flagSink   = 1 << 0
	flagComp   = 1 << 1 // attn_decode: there is a compressed set
	flagLens   = 1 << 1 // attn_prefill: there are lengths
	flagLSE    = 1 << 2
	flagMax    = 1 << 3
	flagUnrope = 1 << 4 // attn_merge, attn_decode_cm
	flagNorm   = 1 << 5 // attn_decode_cm
)

// mergeShared is the shared memory of a group of a workgroup of attn_merge, in bytes.
const mergeShared = 2064

// merge joins the partial rows of a split attention; MergeRef defines it.
type merge struct {
	dev     *vk.Device
	variant string
	k       []*opkit.Later // of opkit.Joins
}

// mergeOf returns the merge for a build of an attention kernel: base, which takes no
// address, keeps to itself.
func mergeOf(dev *vk.Device, variant string) (merge, error) {
	if variant != opkit.Base {
		variant = ""
	}
	return newMerge(dev, variant)
}

func newMerge(dev *vk.Device, want string) (merge, error) {
	m := merge{dev: dev}
	var err error
	if m.variant, err = pkg.Choose(dev, "merge", opkit.Builds("attn_merge"), want, 0); err != nil {
		return m, err
	}
	for _, j := range opkit.Joins {
		if c := dev.Caps(); j.Threads() > int(c.MaxWorkgroupInvocations) || j.Groups*mergeShared > int(c.SharedMemory) {
			j.Groups = 1
		}
		m.k = append(m.k, pkg.Later(dev, opkit.Spec{
			Stem: "attn_merge", Variant: m.variant,
			Bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Write, vk.Write, vk.Write},
			Push:     attnMergePush{}, Constants: opkit.Constants(j.Ahead, j.Groups),
		}))
	}
	return m, nil
}

// kernel returns the build that joins `splits` parts.
func (m merge) kernel(splits int) *opkit.Later {
	return m.k[slices.Index(opkit.Joins, opkit.JoinOf(splits))]
}

// record joins splits partial rows of t tokens. The tensors were checked by the
// operation that wrote the parts.
func (m merge) record(rec *vk.Recorder, ml, out vk.View, splits int, sink, dst, lse, maxLogits tensor.Tensor, turn InverseRope) error {
	const op = "merge"
	t, heads := dst.Shape[0], dst.Shape[1]
	p := attnMergePush{Heads: uint32(heads), Splits: uint32(splits), Flags: outputFlags(sink, lse, maxLogits), TableRows: 1}
	if !turn.isZero() {
		p.Flags |= flagUnrope
		p.TableRows = uint32(turn.Table.Shape[0])
	}
	kernel, err := m.kernel(splits).Kernel()
	if err != nil {
		return err
	}
	d := vk.Dispatch{Kernel: kernel, Groups: [3]uint32{uint32(heads), uint32(t), 1}}
	// The kernel reads what is absent, too, and ignores it: the parts stand in. dst stands in for
	// what it would write.
	for _, x := range []struct {
		addr   *uint64
		v, in  vk.View
		access vk.Access
	}{
		{&p.PartOutAddr, out, out, vk.Read}, {&p.PartMlAddr, ml, ml, vk.Read}, {&p.SinkAddr, sink.View(), ml, vk.Read},
		{&p.PositionsAddr, turn.Positions.View(), ml, vk.Read}, {&p.TableAddr, turn.Table.View(), out, vk.Read},
		{&p.DstAddr, dst.View(), dst.View(), vk.Write}, {&p.LseAddr, lse.View(), dst.View(), vk.Write},
		{&p.MaxAddr, maxLogits.View(), dst.View(), vk.Write},
	} {
		if x.v.Buffer == nil {
			x.v = x.in
		}
		*x.addr = x.v.Address()
		if m.variant == opkit.Base {
			d.Bind = append(d.Bind, x.v)
		} else {
			d.Reach = append(d.Reach, vk.Reach{View: x.v, Access: x.access})
		}
	}
	d.Push = vk.Bytes(&p)
	return pkg.Wrap(op, rec.Dispatch(d))
}

// outputFlags says which optional tensors are there.
func outputFlags(sink, lse, maxLogits tensor.Tensor) uint32 {
	return opkit.Bit(0, !sink.IsZero()) | opkit.Bit(2, !lse.IsZero()) | opkit.Bit(3, !maxLogits.IsZero())
}
