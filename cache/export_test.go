package cache

// PushLayouts is for the tests outside the package, which alone can use testkit.
var PushLayouts = pushLayouts

// WithRows changes how many rows an invocation of Compress loads together, 4 or 8, and
// whether it loads the next ones before it works on some.
func (cfg CompressConfig) WithRows(chunk, ahead int) CompressConfig {
	cfg.chunk, cfg.ahead = chunk, ahead
	return cfg
}
