package safetensors

// ParseIndex is parseIndex.
func ParseIndex(data []byte) (map[string]string, error) { return parseIndex(data, All) }
