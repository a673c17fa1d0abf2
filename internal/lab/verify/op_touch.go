package verify

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	Register(Op{
		Name: "touch", Class: ClassExact, Variants: []tuning.Variant{{Name: opkit.Base}},
		Of:     Of{"cache.Touch", "kv_touch", ""},
		Random: randomTouch, Ref: refBy(fields, refTouch), Bind: bindBy(fields, bindTouch), Compare: exactly("pool", "sink"),
	})
}

// touchWord is the word of a pool that goes into the sink.
const touchWord = 0x9E3779B9

// touchSink has the words of the sink before.
var touchSink = []uint32{1, 2}

// randomTouch makes pools around the bytes between two reads, of that word and of others.
func randomTouch(seed uint64) []Case {
	return casesOf(seed, []int{8, 64, 2<<20 - 8, 2 << 20, 2<<20 + 8, 5<<20 + 24}, func(rng *rand.Rand, i int, bytes int) Case {
		data := make([]byte, bytes)
		for at := 0; at < bytes; at += 4 {
			word := uint32(touchWord)
			if i%2 == 1 {
				word = rng.Uint32() &^ 1 // any other
			}
			binary.LittleEndian.PutUint32(data[at:], word)
		}
		return Case{
			Name: fmt.Sprintf("bytes%d", bytes), Params: map[string]any{},
			In: Arrays{"pool": Array{Type: vectors.U8, Shape: []int{bytes / 8, 8}, Data: data}},
		}
	})
}

type touchInput struct {
	Pool Array `in:"pool u8 * *"`
}

// refTouch changes nothing but a word that nothing reads.
func refTouch(x touchInput) (Arrays, error) {
	sink := vectors.FromU32(touchSink, 2)
	if binary.LittleEndian.Uint32(x.Pool.Data) == touchWord {
		binary.LittleEndian.PutUint32(sink.Data, touchWord)
	}
	return Arrays{"pool": x.Pool, "sink": sink}, nil
}

func bindTouch(b Build, x touchInput) (Bound, error) {
	op, err := cache.NewTouch(b.Dev)
	return Bound{opkit.Base, func(r *Rig) Launch {
		p, sink := r.In(x.Pool, tensor.U8), r.In(vectors.FromU32(touchSink, 2), tensor.U32)
		return Launch{Out: outs{"pool": p, "sink": sink},
			Record: func(rec *vk.Recorder) error { return op.Record(rec, p, sink) }}
	}}, err
}
