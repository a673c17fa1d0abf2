package tuning

// Compress is what package cache was fitted to.
type Compress struct{}
