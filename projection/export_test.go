package projection

import "github.com/vkmla/vkmla/shaders"

// PushLayouts is for the tests outside the package, which alone can use testkit.
var PushLayouts = pushLayouts

// LanesRequired are the features of kernels whose invocations pass numbers on inside
// subgroups.
func LanesRequired() []string { return shaders.Requires("proj_q_insert_lanes") }
