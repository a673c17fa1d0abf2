package safetensors

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// Write writes a file of tensors, whose bytes follow each other in their order.
func Write(w io.Writer, tensors ...Tensor) error {
	described, at := map[string]any{}, 0
	for _, t := range tensors {
		end := at + len(t.Data)
		described[t.Name] = map[string]any{"dtype": t.DType, "shape": append([]int{}, t.Shape...), "data_offsets": []int{at, end}}
		at = end
	}
	header, err := json.Marshal(described)
	for len(header)%8 != 0 { // so that the data begins aligned
		header = append(header, ' ')
	}
	if err == nil {
		_, err = w.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...))
	}
	for _, t := range tensors {
		if err == nil {
			_, err = w.Write(t.Data)
		}
	}
	if err != nil {
		return fmt.Errorf("safetensors: write: %w", err)
	}
	return nil
}
