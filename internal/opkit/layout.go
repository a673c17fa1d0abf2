package opkit

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// MatrixLayout finds out which component of which lane of a subgroup holds which element
// of the matrices A [m,k], B [k,n] and C [m,n] of a product: of f16 for variant CM, of
// bf16 for CMB, with sums of f32. Word i*subgroup + l of the first m*k is row*k + column
// of component i of lane l of A; the next k*n are row*n + column for B, and the last m*n
// row*n + column for C.
//
// It runs num_layout, a kernel of one workgroup, once for each device, build and shape.
// The words are nil where a lane has more or fewer components than its share of a matrix,
// as where every element is held twice, and where nothing is written, as by a driver that
// only compiles. What they say is the caller's to judge: an element type with too few
// digits for all indices, as bf16 has with more than 256 elements, makes some the same.
//
// Errors: those of building and running a kernel.
func (p Package) MatrixLayout(dev *vk.Device, variant string, m, n, k, subgroup int) ([]uint32, error) {
	const op = "layout of matrices"
	if f := factsOf(dev); f != nil {
		if f.Layout == nil {
			return nil, nil
		}
		return f.Layout(m, n, k, subgroup), nil
	}
	words, err := p.ask(dev, op, m*k+k*n+m*n+3, Spec{Stem: "num_layout", Variant: variant, Bindings: []vk.Access{vk.Write},
		Subgroup: uint32(subgroup), Constants: Constants(subgroup, m, n, k)})
	if err != nil {
		return nil, err
	}
	return slices.Clone(layoutWords(m, n, k, subgroup, words)), nil
}

// probe is the key under which a device keeps what a kernel found out about it.
type probe struct{ stem, variant, constants string }

// ask returns what one workgroup of a kernel writes into n words, each 0xFFFFFFFF before. The
// kernel runs once for each device. The words are not to be changed.
func (p Package) ask(dev *vk.Device, op string, n int, s Spec) ([]uint32, error) {
	key := probe{s.Stem, s.Variant, fmt.Sprint(s.Constants)}
	if words, ok := door.Notes(dev).Load(key); ok {
		return words.([]uint32), nil
	}
	s.Bound = 1
	kernel, err := p.Kernel(dev, s)
	if err != nil {
		return nil, err
	}
	words, err := written(dev, kernel, n)
	if err != nil {
		return nil, p.Wrap(op, err)
	}
	door.Notes(dev).Store(key, words)
	return words, nil
}

// written runs a kernel for ask.
func written(dev *vk.Device, k *vk.Kernel, n int) ([]uint32, error) {
	out, err := tensor.New(dev, "layout of matrices", tensor.U32, n)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	ctx := context.Background()
	err = dev.Run(ctx, func(rec *vk.Recorder) error {
		if err := rec.Fill(out.View(), 0xFFFFFFFF); err != nil {
			return err
		}
		return rec.Dispatch(vk.Dispatch{Kernel: k, Groups: [3]uint32{1, 1, 1}, Bind: []vk.View{out.View()}})
	})
	if err != nil {
		return nil, err
	}
	b := make([]byte, out.Bytes())
	if err := out.Download(ctx, b); err != nil {
		return nil, err
	}
	words := make([]uint32, n)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return words, nil
}

// layoutWords takes the numbers of components off the end of what num_layout writes. It is
// nil unless they are the lanes' shares of the matrices.
func layoutWords(m, n, k, subgroup int, words []uint32) []uint32 {
	end := len(words) - 3
	for i, size := range []int{m * k, k * n, m * n} {
		if uint64(words[end+i])*uint64(subgroup) != uint64(size) {
			return nil
		}
	}
	return words[:end:end]
}
