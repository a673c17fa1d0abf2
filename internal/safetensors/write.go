package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// Source is a tensor to be written.
type Source struct {
	Name  string
	DType DType
	Shape []int
	// Write writes the tensor's bytes, neither more nor fewer than type and shape
	// say. It is called once, after those of the tensors before it.
	Write func(w io.Writer) error
}

// Bytes makes a Source of bytes in memory.
func Bytes(name string, d DType, data []byte, shape ...int) Source {
	return Source{name, d, shape, func(w io.Writer) error { _, err := w.Write(data); return err }}
}

// Write writes a file with the tensors in their order.
func Write(w io.Writer, meta map[string]string, tensors []Source) error {
	header, sizes, err := encodeHeader(meta, tensors)
	if err != nil {
		return err
	}
	if err := binary.Write(w, binary.LittleEndian, uint64(len(header))); err != nil {
		return fmt.Errorf("safetensors: write: %w", err)
	}
	if _, err := w.Write(header); err != nil {
		return fmt.Errorf("safetensors: write: %w", err)
	}
	for i, t := range tensors {
		c := &counter{w: w}
		if err := t.Write(c); err != nil {
			return fmt.Errorf("safetensors: write: %s: %w", t.Name, err)
		}
		if c.n != sizes[i] {
			return fmt.Errorf("safetensors: write: %s: %s %s needs %d bytes, %d came: %w",
				t.Name, t.DType, shapeString(t.Shape), sizes[i], c.n, ErrFormat)
		}
	}
	return nil
}

func encodeHeader(meta map[string]string, tensors []Source) ([]byte, []int64, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	member := func(name string, v any) error {
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		k, err := json.Marshal(name)
		if err != nil {
			return err
		}
		e, err := json.Marshal(v)
		if err != nil {
			return err
		}
		b.Write(append(append(k, ':'), e...))
		return nil
	}
	if len(meta) > 0 {
		if err := member(metadata, meta); err != nil {
			return nil, nil, fmt.Errorf("safetensors: write: %w", err)
		}
	}
	var sizes []int64
	at, seen := int64(0), map[string]bool{metadata: true}
	for _, t := range tensors {
		n, ok := size(t.DType, t.Shape)
		if !ok || !printable(t.Name) || seen[t.Name] {
			return nil, nil, fmt.Errorf("safetensors: write: %.200q: %s %s: bad or repeated name, type or shape: %w",
				t.Name, t.DType, shapeString(t.Shape), ErrFormat)
		}
		seen[t.Name] = true
		shape, offsets := append([]int{}, t.Shape...), []int64{at, at + n}
		if err := member(t.Name, map[string]any{"dtype": t.DType, "shape": shape, "data_offsets": offsets}); err != nil {
			return nil, nil, fmt.Errorf("safetensors: write: %w", err)
		}
		sizes, at = append(sizes, n), at+n
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 { // so that the data begins aligned
		b.WriteByte(' ')
	}
	return b.Bytes(), sizes, nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
