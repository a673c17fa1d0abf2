package model

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"maps"
	"slices"
	"strconv"
)

// Identity tells the weights of a layer from others. The zero value says nothing of them.
type Identity [sha256.Size]byte

// String is 64 hexadecimal digits.
func (id Identity) String() string { return hex.EncodeToString(id[:]) }

// What Identity reads of a large tensor.
const (
	identitySpans = 16
	identitySpan  = 4096 // bytes
)

// identityForm begins what is hashed.
const identityForm = "vkmla weights 1\n"

// Identity is the SHA-256 of the layer's tensors in the order of their released names: of each its
// name, element type, shape and bytes, as stored. Of more than 64 KiB it takes 16 spans of 4096
// bytes at equal distances, the first and the last bytes among them. So it reads at most 64 KiB of
// a tensor: of DeepSeek-V4-Flash some 26 MB of 5 GB.
//
// It sees other weights of the same shapes, other formats and scales, and training, which changes
// numbers everywhere. It does not see a change that lies between the spans, which can be made on
// purpose. All ranks have the same, and so have files that only spell names otherwise or divide
// tensors among them in another way.
//
// Errors: ErrCheckpoint if a file shrank after it was opened.
func (l *LayerWeights) Identity() (id Identity, err error) {
	if l.stored == nil {
		return Identity{}, nil
	}
	h := sha256.New()
	h.Write([]byte(identityForm))
	err = guarded(func() {
		for _, name := range slices.Sorted(maps.Keys(l.stored)) {
			t := l.stored[name]
			line := strconv.AppendQuote(nil, name)
			line = append(line, " "+string(t.DType)...)
			for _, n := range t.Shape {
				line = strconv.AppendInt(append(line, ' '), int64(n), 10)
			}
			h.Write(append(line, '\n'))
			writeIdentitySpans(h, t.Data)
		}
	})
	if err != nil {
		return Identity{}, err
	}
	return Identity(h.Sum(nil)), nil
}

// writeIdentitySpans writes what Identity reads of a tensor.
func writeIdentitySpans(h io.Writer, data []byte) {
	if len(data) <= identitySpans*identitySpan {
		h.Write(data)
		return
	}
	for i := range identitySpans {
		h.Write(data[int64(len(data)-identitySpan)*int64(i)/(identitySpans-1):][:identitySpan])
	}
}
