package safetensors

// ParseIndex is parseIndex.
func ParseIndex(data []byte) (map[string]string, error) { return parseIndex(data, All) }

// Parse is parse.
func Parse(file []byte) (map[string]Tensor, error) { return parse(file, All) }

// OpenFile is open.
func OpenFile(path string) (*File, error) { return open(path, All) }

// Bytes makes a Tensor of bytes in memory.
func Bytes(name string, d DType, data []byte, shape ...int) Tensor {
	return Tensor{name, d, shape, data}
}
