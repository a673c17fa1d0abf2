package gpu

//go:generate ../../scripts/shaders

import (
	"embed"
	"fmt"
	"math"
	"math/bits"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

const pkg = opkit.Package("gpu")

//go:embed shaders/spv/*.spv
var spirv embed.FS

// What each kernel does with its bindings. divided are those that take long with many tokens;
// matrices want subgroups of the size that constant 2 names.
var kernels = map[string]struct {
	bindings []vk.Access
	divided  bool
	matrices bool
}{
	"choose":  {bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Write, vk.Write, vk.Write}},
	"context": {bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Write}},
	"follow":  {bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Write, vk.Write}},
	"state":   {bindings: []vk.Access{vk.Read, vk.Read, vk.Write}},
	"copy":    {bindings: []vk.Access{vk.Read, vk.Write}},
	"decode":  {bindings: []vk.Access{vk.Read, vk.Write}},
	"enter":   {bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Write, vk.Write}},
	"group":   {bindings: []vk.Access{vk.Read, vk.Read, vk.Write}},
	"leave":   {bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.ReadWrite, vk.Read, vk.Write}, divided: true},
	"product": {bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Write}, divided: true},
	"product_cm": {bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Write},
		divided: true, matrices: true},
	"product_tiles": {bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Write}, divided: true},
	"send":          {bindings: []vk.Access{vk.Read, vk.Read, vk.Write}},
	"up":            {bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Write}, divided: true},
	"up_cm": {bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Write},
		divided: true, matrices: true},
	"unpack":   {bindings: []vk.Access{vk.Read, vk.Write, vk.Write}},
	"whole":    {bindings: []vk.Access{vk.Read, vk.Write}, divided: true},
	"up_tiles": {bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Write}, divided: true},
}

// built holds a device's kernels that were asked for: a device finds them by their whole code,
// which would take most of the time of a recording.
type built struct {
	dev   *vk.Device
	known map[string]*vk.Kernel
}

// kernel returns a kernel whose push constants have the type of push.
func (b *built) kernel(name string, push any, constants ...uint32) (*vk.Kernel, error) {
	key := fmt.Sprint(name, constants)
	if k := b.known[key]; k != nil {
		return k, nil
	}
	code, err := spirv.ReadFile("shaders/spv/" + name + ".spv")
	if err != nil {
		return nil, fmt.Errorf("gpu: kernel %s: %w", name, err)
	}
	of := kernels[name]
	spec := opkit.Spec{Stem: "server_" + name, Variant: opkit.Base, SPIRV: code, Bindings: of.bindings,
		Push: push, Constants: constants, Divisible: of.divided}
	if of.matrices {
		spec.Subgroup = constants[2]
	}
	k, err := pkg.Kernel(b.dev, spec)
	if err != nil {
		return nil, err
	}
	if b.known == nil {
		b.known = map[string]*vk.Kernel{}
	}
	b.known[key] = k
	return k, nil
}

// launch is a dispatch of a kernel that is looked up by its name.
func launch[P any](rec *vk.Recorder, b *built, name string, groups [3]uint32, products float64, push *P,
	constants []uint32, bind ...vk.View) error {
	k, err := b.kernel(name, *push, constants...)
	if err != nil {
		return err
	}
	for i, v := range bind {
		if v.IsZero() {
			bind[i] = b.dev.Dummy()
		}
	}
	return rec.Dispatch(vk.Dispatch{Kernel: k, Groups: groups, Bind: bind, Push: vk.Bytes(push), Products: products})
}

const (
	teams     = 4  // of a workgroup of products
	slice     = 64 // columns of all streams that a workgroup mixes
	mixTokens = 4  // that share fn there
)

// tiling holds the rows of a matrix that a team has, and more. It changes no bit of the results.
type tiling struct {
	up, down   int // of w1 and w3 each; of w2
	gate, head int
	tokens     int // that share weights in registers, at most: 1, 2, 4 or 8
	tiles      int // from this number of tokens on, products of all of them take tiles; 0: never
	routed     int // from this number on of an expert, on average, routed ones of whole numbers take tiles
	matrices   int // likewise matrices
}

var usual = tiling{up: 2, down: 4, gate: 1, head: 4, tokens: 4, tiles: 128, routed: 16, matrices: 6}

const matrixRows = 128 // of weights, of a workgroup with matrices

const (
	tileRows   = 64       // of weights, of a workgroup of tiles
	tileTokens = 32       // or half of them
	tileShared = 17 << 10 // bytes that these take, at most
)

// tileOf returns the number of T tokens that a tile has; 0: none is taken.
func (g *GPU) tileOf(T int) int {
	if g.tiles.tiles == 0 || T < g.tiles.tiles {
		return 0
	}
	return g.tileMost()
}

// tileMost is the largest tile that the device takes.
func (g *GPU) tileMost() int {
	if g.dev.Caps().SharedMemory < tileShared {
		return tileTokens / 2
	}
	return tileTokens
}

// tokensOf returns the number of T tokens that share weights where all of them need these.
func (t tiling) tokensOf(T int) int { return min(t.tokens, 1<<bits.Len(uint(T-1))) }

// pairsOf is the same where tokens choose among experts: four times as many as an expert gets on
// average. More of them take turns, out of a cache.
func (t tiling) pairsOf(T, k, experts int) int {
	n := 1
	for n < t.tokensOf(T) && n*experts < 4*T*k {
		n *= 2
	}
	return n
}

// quads returns the pieces of 16 bytes that a row of k bf16 numbers takes where products read it.
func quads(k int) int { return (k + 1023) / 1024 * 128 }

// wholeQuads is quads of a row of whole numbers, as lib/whole.glsl has it.
func wholeQuads(k int) int { return (k + 1023) / 1024 * (128 + 16 + 1) }

func size[N int | uint32](n N) uint32 { return uint32(n) }

// keepsHalves tries whether codes can pass through binary16, whose subnormals have to stay.
func keepsHalves(dev *vk.Device) (bool, error) {
	for _, c := range []struct {
		format format
		codes  []byte
		value  func(i int) float32
	}{
		{mxfp4, []byte{0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE, 0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE},
			func(i int) float32 { return numfmt.E2M1Decode(byte(i)) }},
		{fp8, everyByte(), func(i int) float32 { return numfmt.E4M3Decode(byte(i)) }},
	} {
		got, err := decoded(dev, c.format, true, c.codes)
		if err != nil {
			return false, err
		}
		for i, v := range got {
			if want := c.value(i); want == want && math.Float32bits(want) != math.Float32bits(v) {
				return false, nil
			}
		}
	}
	return true, nil
}

func everyByte() []byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return all
}
