package vk

import vulkan "github.com/goki/vulkan"

// Section is a named stretch of Commands: what was recorded between two calls of
// Recorder.Section.
type Section struct {
	Name       string
	Dispatches int
	Barriers   int     // derived in front of or between its launches
	NS         float64 // from the end of the work before it to the end of its own, in the last submission
	// Waits are the places where launches wait for everything recorded before: at each barrier
	// and where a submission begins. Each is given as the number of the section's launches
	// before it.
	Waits []int
}

// sectionMark is the state of the recorder where a section begins.
type sectionMark struct {
	name                 string
	dispatches, barriers int
	operations, waits    int
	mark                 int // index of its timestamp
}

// TimeSections makes Section take effect: the recorder counts and times sections, with a
// timestamp where each begins. A timestamp costs the device a little and may keep
// neighbours from overlapping, so the times add up to more than the commands take
// without them.
//
// Errors: those of Timestamp.
func (r *Recorder) TimeSections() error {
	mark, err := r.Timestamp()
	if err != nil {
		return err
	}
	r.sections = append(r.sections, r.sectionAt("", mark))
	return nil
}

func (r *Recorder) sectionAt(name string, mark int) sectionMark {
	return sectionMark{name, r.dispatches, r.barriers, r.operations, len(r.waits), mark}
}

// waiting notes that what is recorded from here on waits.
func (r *Recorder) waiting() {
	if r.sections != nil {
		r.waits = append(r.waits, r.dispatches)
	}
}

// TimeWhole is TimeSections with a single section: everything recorded from now on.
//
// Errors: those of Timestamp.
func (r *Recorder) TimeWhole() error {
	if r != nil {
		r.whole = true
	}
	return r.TimeSections()
}

// Section names what is recorded from here on. Without TimeSections it does nothing, so
// operations may always name their parts. An error is returned by End. A section without
// a recorded operation is dropped.
func (r *Recorder) Section(name string) {
	if r == nil || r.sections == nil || r.whole || r.ended || r.sectionErr != nil || r.sections[len(r.sections)-1].name == name {
		return
	}
	last := &r.sections[len(r.sections)-1]
	if last.operations == r.operations && last.barriers == r.barriers {
		last.name = name // nothing was recorded yet
		return
	}
	var mark int
	if mark, r.sectionErr = r.Timestamp(); r.sectionErr == nil {
		r.sections = append(r.sections, r.sectionAt(name, mark))
	}
}

// sectionMarks is the number of timestamps that parts must leave to sections.
func (r *Recorder) sectionMarks() int {
	switch {
	case r.sections == nil:
		return 0
	case r.whole:
		return 1
	}
	return maxTimestamps / 2
}

// endSections takes the time where the last section ends.
func (r *Recorder) endSections() error {
	if r.sections == nil || r.sectionErr != nil {
		return r.sectionErr
	}
	mark, err := r.Timestamp()
	if err == nil {
		r.sections = append(r.sections, r.sectionAt("", mark))
	}
	return err
}

// Sections returns the sections in the order of recording, with the times of the last
// submission; nil without Recorder.TimeSections. Errors: those of Timestamps.
func (c *Commands) Sections() ([]Section, error) {
	marks := c.rec.sections
	if marks == nil {
		return nil, nil
	}
	ns, err := c.Timestamps()
	if err != nil {
		return nil, err
	}
	list := make([]Section, len(marks)-1)
	for i := range list {
		a, b := marks[i], marks[i+1]
		list[i] = Section{a.name, b.dispatches - a.dispatches, b.barriers - a.barriers, ns[b.mark] - ns[a.mark], nil}
		for _, at := range c.rec.waits[a.waits:b.waits] {
			list[i].Waits = append(list[i].Waits, at-a.dispatches)
		}
	}
	return list, nil
}

// launch records a launch of n workgroups.
func (r *Recorder) launch(n [3]uint32) {
	vulkan.CmdDispatch(r.cmd, n[0], n[1], n[2])
	r.dispatches++
}
