package tuning

// Attention is what package attention was fitted to.
type Attention struct{}
