package attention

import (
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

type attnCombineIndicesPush struct {
	Requests, Topk, TopkWidth, Window, Ratio, M, N, Width uint32
}

// CombineIndices lists, for the tokens of a prefill chunk, the rows of the
// gathered bf16 workspace that each attends: compressed entries first, then the
// sliding window (vLLM's combine_topk_swa_indices). CombineIndicesRef defines it.
type CombineIndices struct {
	dev *vk.Device
	k   *vk.Kernel
}

// CombineIndicesArgs are the tensors and sizes of one CombineIndices. Request b of
// the chunk owns workspace rows M*b .. M*b+M-1: its compressed entries from M*b,
// its window tokens from M*b + N.
type CombineIndicesArgs struct {
	TopK       tensor.Tensor // [T, >= K] i32: entries of the request; may be absent if K is 0
	QueryStart tensor.Tensor // [R+1] i32: any base, the first element is subtracted
	SeqLens    tensor.Tensor // [R] i32
	GatherLens tensor.Tensor // [R] i32: window tokens that were gathered
	Indices    tensor.Tensor // [T, CombinedWidth(K, Window)] i32, written
	Lens       tensor.Tensor // [T] i32, written
	K          int           // most compressed entries of a token, 0 for window-only layers
	Window     int           // rows of the sliding window, at least 1 (128)
	Ratio      int           // tokens per compressed entry, at least 1
	M, N       int           // workspace rows of a request, of these compressed
}

// CombinedWidth is the width of CombineIndices' rows: k + window rounded up to a
// multiple of 128, as in vLLM's combine_topk_swa_indices.
func CombinedWidth(k, window int) int { return opkit.RoundUp(k+window, 128) }

// NewCombineIndices builds the kernel. Errors: those of vk.Device.Kernel.
func NewCombineIndices(dev *vk.Device) (*CombineIndices, error) {
	k, err := pkg.Kernel(dev, opkit.Spec{Stem: "attn_combine_indices", Variant: opkit.Base,
		Bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Write, vk.Write},
		Push:     attnCombineIndicesPush{},
	})
	if err != nil {
		return nil, err
	}
	return &CombineIndices{dev, k}, nil
}

// Record checks the arguments and records the operation.
//
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *CombineIndices) Record(rec *vk.Recorder, a CombineIndicesArgs) error {
	const op = "combine indices"
	if a.K < 0 || a.K > math.MaxInt32/4 {
		return pkg.Wrong(op, "K", a.K, "0 or more")
	}
	if err := opkit.FirstError(pkg.Range(op, "Window", a.Window, 1, math.MaxInt32),
		pkg.Range(op, "Ratio", a.Ratio, 1, math.MaxInt32)); err != nil {
		return err
	}
	t, r := opkit.DimOrZero(a.Indices, 0), opkit.DimOrZero(a.SeqLens, 0)
	if err := opkit.FirstError(
		pkg.Check(op, "Indices", a.Indices, tensor.I32, -1, CombinedWidth(a.K, a.Window)),
		pkg.Check(op, "SeqLens", a.SeqLens, tensor.I32, -1),
		pkg.Check(op, "QueryStart", a.QueryStart, tensor.I32, r+1),
		pkg.Check(op, "GatherLens", a.GatherLens, tensor.I32, r),
		pkg.Check(op, "Lens", a.Lens, tensor.I32, t),
	); err != nil {
		return err
	}
	if a.K > 0 {
		if err := pkg.Check(op, "TopK", a.TopK, tensor.I32, t, -1); err != nil {
			return err
		}
		if a.TopK.Shape[1] < a.K {
			return pkg.Wrong(op, "TopK", a.TopK, "at least %d columns", a.K)
		}
	}
	switch {
	case r < 1:
		return pkg.Wrong(op, "SeqLens", a.SeqLens, "at least one request")
	case a.N < 0 || a.M < a.N || a.M > math.MaxInt32/r:
		return pkg.Wrong(op, "M, N", [2]int{a.M, a.N}, "0 <= N <= M and fewer than 2^31 workspace rows")
	case t == 0:
		return nil
	}
	topk := a.TopK
	if a.K == 0 {
		topk = tensor.Tensor{}
	}
	p := attnCombineIndicesPush{
		Requests: uint32(r), Topk: uint32(a.K), TopkWidth: uint32(opkit.DimOrZero(topk, 1)), Window: uint32(a.Window),
		Ratio: uint32(a.Ratio), M: uint32(a.M), N: uint32(a.N), Width: uint32(a.Indices.Shape[1]),
	}
	return pkg.Launch(rec, op, o.k, t, vk.Bytes(&p),
		opkit.ViewOrDummy(o.dev, topk), a.QueryStart.View(), a.SeqLens.View(), a.GatherLens.View(),
		a.Indices.View(), a.Lens.View())
}
