package tuning

// Layer is what the order of a layer's operations was fitted to.
type Layer struct{}
