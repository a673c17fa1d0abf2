package tuning

// Device is what a device as a whole has room for.
type Device struct{}
