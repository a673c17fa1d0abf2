package attention

// PushLayouts is for the tests outside the package, which alone can use testkit.
var PushLayouts = pushLayouts

// WithoutLanes runs f as on a device whose matrices the kernels in lanes do not know.
func WithoutLanes(f func()) {
	lanesOff = true
	defer func() { lanesOff = false }()
	f()
}

// InLanes tells whether a decoder has attn_decode_lanes.
func InLanes(o *Decoder) bool { return len(o.tilings) > 0 && o.tilings[0].Stem != "" }
