package tuning

import "github.com/vkmla/vkmla/vk"

// Step is what the submissions of a step were fitted to.
type Step struct {
	// FirstWorkgroups is the most workgroups of a submission on a device that is not a discrete
	// GPU, until their time is known. Fewer keep a slow device's first step from its watchdog and
	// cost submissions. A workgroup has about 0.3 GFLOP to do at most, so the usual 200 ms need
	// 1 TFLOP/s.
	FirstWorkgroups int
}

// First is the most workgroups of a submission that was never timed; 0: any number.
func (s *Step) First(a *vk.Adapter) int {
	if a.Type == vk.TypeDiscrete {
		return 0
	}
	return s.FirstWorkgroups
}
