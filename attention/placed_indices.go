package attention

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

type attnPlacedIndicesPush struct {
	Piece, K, Window, Ratio, Width, Flags uint32
}

// placedIndices lists, for the tokens of a piece of a RowPlan, the rows of the gathered workspace
// that each attends; PlacedIndicesRef defines it. It is CombineIndices for workspaces that requests
// do not share evenly.
type placedIndices struct {
	dev *vk.Device
	k   *vk.Kernel
}

func newPlacedIndices(dev *vk.Device) (placedIndices, error) {
	k, err := pkg.Kernel(dev, opkit.Spec{
		Stem: "attn_placed_indices", Variant: opkit.Base, Bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Write, vk.Write},
		Push: attnPlacedIndicesPush{},
	})
	return placedIndices{dev, k}, err
}

// record lists the rows of the tokens of a piece. The tensors were checked by the caller.
func (o placedIndices) record(rec *vk.Recorder, piece int, rows RowConfig, topk, positions, places, indices, lens tensor.Tensor) error {
	p := attnPlacedIndicesPush{Piece: uint32(piece), K: uint32(rows.Width), Window: uint32(rows.Window), Ratio: uint32(rows.Ratio),
		Width: uint32(indices.Shape[1]), Flags: opkit.Bit(0, !topk.IsZero())}
	return pkg.Launch(rec, "placed indices", o.k, indices.Shape[0], vk.Bytes(&p),
		opkit.ViewOrDummy(o.dev, topk), positions.View(), places.View(), indices.View(), lens.View())
}
