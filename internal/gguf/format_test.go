package gguf_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/lab/testkit"
)

// recorded has, for each format that gguf-py of February 2025 decodes, where a block's halves lie,
// and the beginning of the SHA-256 of its values of 64 blocks by blocks.
var recorded = map[string]struct {
	halves []int
	sum    string
}{
	"F16":     {[]int{0}, "c8de15e45405e7ada23a23d2749307ad"},
	"Q4_0":    {[]int{0}, "daacdb3426dfd246e51bf87d6b6a843a"},
	"Q5_0":    {[]int{0}, "5ef2f60d6dee8ef1cc9977456fe52e40"},
	"Q8_0":    {[]int{0}, "d8e5e6a4e520811ca55c87f2f9ab4987"},
	"IQ4_NL":  {[]int{0}, "43c9be665121a0c4b7b9362a5de853cd"},
	"Q2_K":    {[]int{80, 82}, "0ac6d81aedbcedebe57d3090f64d2659"},
	"Q3_K":    {[]int{108}, "d79653b0a1251ec0ced08181c035430a"},
	"Q4_K":    {[]int{0, 2}, "4db0b6674e598f7f4457a151f0c035ff"},
	"Q5_K":    {[]int{0, 2}, "5b0aa17d73cc3d8b75e9ea77b842397c"},
	"Q6_K":    {[]int{208}, "035a9755d496a433a4a6154b2bd9a310"},
	"IQ1_S":   {[]int{0}, "4b977f61475b4e62019519edb2422924"},
	"IQ1_M":   {[]int{54}, "263807effc4ca444c5eb99f254480526"}, // the top of its f16 alone
	"IQ2_XXS": {[]int{0}, "6c84fcd4884eb2101005bcb58e08178e"},
	"IQ2_XS":  {[]int{0}, "5f4eb194a9ae31a4383a4fd4bfe9d8bf"},
	"IQ2_S":   {[]int{0}, "3637c879c3d4cc173981f11eb0090b5f"},
	"IQ3_XXS": {[]int{0}, "a2160676d1ae94128ae996a93028614c"},
	"IQ3_S":   {[]int{0}, "d26ffbbc221d38ca595ae310b0fa2fcc"},
	"IQ4_XS":  {[]int{0}, "13fe14b9aa742d67676a57b30755794f"},
	"BF16":    {[]int{0}, "ee9d3d8f54395c98e51f279a482fc419"},
	"F32":     {[]int{2}, "244095dee9dbe86dc251d0efdb4971c1"},
}

// blocks makes 64 blocks of hashes of the format's name, with halves below 2.
func blocks(f *gguf.Format, halves []int) []byte {
	var b []byte
	for i := 0; len(b) < 64*f.Bytes; i++ {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", f.Name, i))
		b = append(b, sum[:]...)
	}
	b = b[:64*f.Bytes]
	for at := 0; at < len(b); at += f.Bytes {
		for _, h := range halves {
			b[at+h+1] &^= 0x40
		}
	}
	return b
}

// sum is the SHA-256 of numbers, in hexadecimal digits.
func sum(x []float32) string {
	h := sha256.New()
	_ = binary.Write(h, binary.LittleEndian, x)
	return hex.EncodeToString(h.Sum(nil))
}

func TestFormats(t *testing.T) {
	for name, c := range recorded {
		f := gguf.FormatNamed(name)
		require.NotNil(t, f, name)
		got := make([]float32, 64*f.Values)
		f.Decode(got, blocks(f, c.halves))
		assert.Equal(t, c.sum, sum(got)[:32], name)
	}
}

// A block is finite if its values are, with any codes.
func TestFinite(t *testing.T) {
	for name, c := range recorded {
		f := gguf.FormatNamed(name)
		if name == "F32" || name == "BF16" || name == "IQ1_M" {
			continue
		}
		for _, h := range c.halves {
			b := blocks(f, c.halves)[:f.Bytes]
			assert.True(t, f.Finite(b), name)
			for _, half := range []uint16{0x7C00, 0xFC00, 0x7E01} {
				binary.LittleEndian.PutUint16(b[h:], half)
				assert.False(t, f.Finite(b), "%s at %d", name, h)
			}
			binary.LittleEndian.PutUint16(b[h:], 0x7BFF)
			assert.True(t, f.Finite(b), name)
		}
	}
	f, b, x := gguf.FormatNamed("IQ1_M"), bytes.Repeat([]byte{0x77}, 56), make([]float32, 256)
	for d := range 1 << 16 {
		for i := range 4 {
			b[49+2*i] = byte(d>>(4*i)<<4 | 7)
		}
		f.Decode(x, b)
		require.Equal(t, !math.IsInf(float64(x[0]), 0) && !math.IsNaN(float64(x[0])), f.Finite(b), "%#x", d)
	}
	f, b, x = gguf.FormatNamed("MXFP4"), bytes.Repeat([]byte{0x77}, 17), make([]float32, 32)
	for e := range 256 {
		b[0] = byte(e)
		f.Decode(x, b)
		assert.Equal(t, !math.IsInf(float64(x[0]), 0), f.Finite(b), e)
	}
}

// Formats of E2M1 by the numbers that a code means.
func TestFP4(t *testing.T) {
	values := [16]float64{0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6}
	mx, nv := gguf.FormatNamed("MXFP4"), gguf.FormatNamed("NVFP4")
	for e := range 255 {
		b, got := make([]byte, 17), make([]float32, 32)
		b[0] = byte(e)
		for i := range 16 {
			b[1+i] = byte(i | (15-i)<<4)
		}
		mx.Decode(got, b)
		for j, x := range got {
			code := j
			if j >= 16 {
				code = 15 - (j - 16)
			}
			require.Equal(t, float32(math.Ldexp(values[code], e-127)), x, "e %d, value %d", e, j)
		}
	}
	for s, want := range map[byte]float64{0: 0, 1: 0x1p-9, 0x38: 1, 0x39: 1.125, 0x7E: 448, 0x7F: 0} {
		b, got := make([]byte, 36), make([]float32, 64)
		for i := range 4 {
			b[i] = s
		}
		for i := range 32 {
			b[4+i] = byte(i%16 | i/2<<4)
		}
		nv.Decode(got, b)
		for j, x := range got {
			i := j/16*8 + j%8
			code := i % 16
			if j%16 >= 8 {
				code = i / 2 % 16
			}
			require.Equal(t, want*values[code], float64(x), "scale %#x, value %d", s, j)
		}
	}
}

// Every tensor of the recorded files has gguf-py's values, bit for bit.
func TestRecordedValues(t *testing.T) {
	dir := testkit.GGUF(t)
	data, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	require.NoError(t, err)
	var manifest struct {
		Files map[string]struct {
			Tensors []struct {
				Name, Type string
				Shape      []int  `json:"shape_numpy"`
				Sum        string `json:"sha256_of_f32_or_i32"`
			}
		}
	}
	require.NoError(t, json.Unmarshal(data, &manifest))
	checked := 0
	for name, want := range manifest.Files {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); os.IsNotExist(err) {
			continue // one is listed and not there
		}
		m, err := gguf.Open(path)
		require.NoError(t, err)
		assert.Len(t, m.Names(), len(want.Tensors))
		for _, w := range want.Tensors {
			x, ok := m.Tensor(w.Name)
			require.True(t, ok, w.Name)
			assert.Equal(t, w.Type, x.Format.Name, w.Name)
			assert.Equal(t, w.Shape, x.Shape, w.Name)
			sha := sha256.Sum256(x.Data)
			got := hex.EncodeToString(sha[:])
			if x.Format.Decodes() {
				v := make([]float32, len(x.Data)/x.Format.Bytes*x.Format.Values)
				x.Format.Decode(v, x.Data)
				got = sum(v)
			}
			assert.Equal(t, w.Sum, got, "%s: %s %v", name, w.Name, x)
			checked++
		}
		require.NoError(t, m.Close())
	}
	assert.Positive(t, checked)
}
