package tuning

// Linear is what the linear layers of package projection were fitted to.
type Linear struct{}
