package prefix

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/vkmla/vkmla/pipeline"
)

// Block is the number of tokens in a span. The entries of every kind of layer end with one.
const Block = 128

// An object is
//
//	magic
//	its name, 32 bytes
//	content
//	HMAC-SHA256 of all that, by Options.Key
const magic = "vkmla prefix 1\n\x00"

// overhead is the number of bytes of an object besides its content.
const overhead = len(magic) + 2*sha256.Size

// digest is a hash, and what an object is named by.
type digest [sha256.Size]byte

func (d digest) String() string { return hex.EncodeToString(d[:]) }

// namer makes names and checksums.
type namer struct {
	key  []byte
	seed digest // of a chain
}

func newNamer(key []byte, model pipeline.Fingerprint) *namer {
	n := &namer{key: append([]byte{}, key...)}
	n.seed = n.sum([]byte(magic), model.Config[:], model.Weights[:], model.Formats[:])
	return n
}

func (n *namer) sum(parts ...[]byte) (d digest) {
	h := hmac.New(sha256.New, n.key)
	for _, p := range parts {
		h.Write(p)
	}
	h.Sum(d[:0])
	return d
}

// chain makes the names of a sequence's objects: a hash for each length that is a multiple of
// Block, from 0.
type chain struct {
	*namer
	tokens []int32
	at     []digest
}

func (n *namer) chain(tokens []int32) *chain {
	c := &chain{n, tokens, []digest{n.seed}}
	for i := Block; i <= len(tokens); i += Block {
		last := c.at[len(c.at)-1]
		c.at = append(c.at, n.sum(last[:], encode(tokens[i-Block:i])))
	}
	return c
}

func encode(tokens []int32) []byte {
	data := make([]byte, 0, 4*len(tokens))
	for _, t := range tokens {
		data = binary.LittleEndian.AppendUint32(data, uint32(t))
	}
	return data
}

// span names the object of a block, from 0.
func (c *chain) span(block int) digest { return c.sum([]byte("span"), c.at[block+1][:]) }

// state names the object of the state after `length` tokens.
func (c *chain) state(length int) digest {
	b := length / Block
	return c.sum([]byte("state"), c.at[b][:], encode(c.tokens[b*Block:length]))
}

// pack makes an object.
func (n *namer) pack(name digest, content []byte) []byte {
	data := make([]byte, 0, len(content)+overhead)
	data = append(append(append(data, magic...), name[:]...), content...)
	sum := n.sum(data)
	return append(data, sum[:]...)
}

// unpack returns the content of an object, which has `size` bytes. The error is ErrDamaged.
func (n *namer) unpack(name digest, data []byte, size int) ([]byte, error) {
	bad := func(format string, a ...any) ([]byte, error) {
		return nil, fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, a...))
	}
	if size < 0 || len(data) != size+overhead {
		return bad("%d bytes, want %d", len(data), size+overhead)
	}
	end := len(data) - sha256.Size
	head, sum := data[:len(magic)], n.sum(data[:end])
	content := data[len(magic)+sha256.Size : end]
	switch {
	case string(head) != magic:
		return bad("it does not begin like one")
	case digest(data[len(magic):][:sha256.Size]) != name:
		return bad("it has another name")
	case !hmac.Equal(sum[:], data[end:]):
		return bad("its checksum is wrong")
	}
	return content, nil
}
