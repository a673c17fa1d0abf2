package vk

import vulkan "github.com/goki/vulkan"

// Section is a named stretch of Commands: what was recorded between two calls of
// Recorder.Section.
type Section struct {
	Name       string
	Dispatches int
	Barriers   int     // derived in front of or between its launches
	NS         float64 // from the end of the work before it to the end of its own, in the last submission
	// Where its launches wait for all that was recorded before: for each such place, how many
	// of its launches are in front of it. There is one for each barrier, and one where a
	// submission begins.
	Waits []int
}

// sectionMark is the state of the recorder where a section begins.
type sectionMark struct {
	name                 string
	dispatches, barriers int
	operations, waits    int
	mark                 int // index of its timestamp
}

// TimeSections makes Section take effect: from now on the recorder counts and times
// sections, with a timestamp where each begins. A timestamp costs the device a little
// and may keep neighbours from overlapping, so that the times add up to more than the
// same commands take without.
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

// TimeWhole is TimeSections with a single section: all that is recorded from now on.
//
// Errors: those of Timestamp.
func (r *Recorder) TimeWhole() error {
	r.whole = true
	return r.TimeSections()
}

// Section names what is recorded from here on. It does nothing without TimeSections,
// so that operations may name their parts always; so it has no error: one is End's. A
// section in which nothing was recorded before the next name is none.
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

// sectionMarks is how many timestamps parts leave to sections, which cannot do without.
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

// Dispatches returns how many launches were recorded so far.
func (r *Recorder) Dispatches() int { return r.dispatches }

// Dispatches returns how many launches were recorded.
func (c *Commands) Dispatches() int { return c.rec.dispatches }

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
