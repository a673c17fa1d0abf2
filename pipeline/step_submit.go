package pipeline

import (
	"context"
	"errors"
	"slices"

	"github.com/vkmla/vkmla/pipeline/internal/commands"
	"github.com/vkmla/vkmla/vk"
)

// brokeOff notes that not all submissions of some commands were made: the device may have stopped
// within an operation, and the layers have to run again.
func (st *Step) brokeOff(key commands.Key, err error) {
	if errors.Is(err, vk.ErrBusy) {
		return // all of them are with the device already
	}
	st.b.Break()
	if key.Layer == commands.Prologue {
		return
	}
	first, end := st.layers(key.Layer)
	if st.e.sizes.Chained() { // the caller's commands cannot be continued, only begun again
		first, end = st.first, len(st.e.layers)
	}
	clear(st.e.now.ran[first:end])
	clear(st.e.now.shown[first:end])
	st.latest = -1
}

// after adds the submissions before this one to sync: where one of them failed, the device gets
// nothing of this one. Without the step's metadata the device has that of an earlier step: layers
// would write to rows that a session has.
func (st *Step) after(repaired *vk.Pending, sync []vk.Sync) []vk.Sync {
	var all []*vk.Pending
	for _, p := range []*vk.Pending{st.flying, repaired} {
		if p == nil {
			continue
		}
		if all = append(all, p); !slices.Contains(st.earlier, p) {
			st.earlier = append(st.earlier, p)
		}
	}
	if all == nil {
		return sync
	}
	return append(slices.Clone(sync), vk.Sync{Behind: all})
}

// waitAll waits for a submission, and returns its error or the first one of those before it, which
// have ended by then.
func waitAll(ctx context.Context, last *vk.Pending, earlier []*vk.Pending) error {
	err := last.Wait(ctx)
	for i := 0; i < len(earlier) && err == nil; i++ {
		err = earlier[i].Wait(ctx)
	}
	return err
}

// withhold keeps from the device what it does not have of the step yet.
func (st *Step) withhold() {
	for _, c := range st.submitted {
		if c.Cancel() {
			st.b.Break()
		}
	}
}
