package safetensors

// ParseIndex is parseIndex.
var ParseIndex = parseIndex
