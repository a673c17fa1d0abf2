package vk

import (
	"sync"

	"github.com/vkmla/vkmla/internal/door"
)

// What other packages of the module reach by package door. A nil buffer or device there has the
// type that is expected here, or none: both come as nil.
func init() {
	dev := func(x any) *Device { d, _ := x.(*Device); return d }
	kernel := func(x any) *Kernel { k, _ := x.(*Kernel); return k }
	door.ExportBuffer = func(x any) (door.Exported, error) { b, _ := x.(*Buffer); return b.export() }
	door.ImportBuffer = func(d any, label string, m int, x door.Exported) (any, error) {
		return dev(d).importBuffer(label, Memory(m), x)
	}
	door.ImportHost = func(d any, label string, memory []byte, size uint64) (any, error) {
		return dev(d).importHost(label, memory, size)
	}
	door.HostAlignment = func(d any) uint64 { return dev(d).hostAlignment() }
	door.ExportSemaphore = func(x any) (door.Exported, error) { s, _ := x.(*Semaphore); return s.export() }
	door.ImportSemaphore = func(d any, x door.Exported) (any, error) { return dev(d).importSemaphore(x) }
	door.CloseHandle = closeHandle
	door.Adopt = func(h door.Handles, o any) (any, error) { return adopt(handles(h), o.(DeviceOptions)) }
	door.HandlesOf = func(d any) door.Handles { return dev(d).handles() }
	door.Statistics = func(d, k any) ([]door.Statistic, error) { return dev(d).statistics(kernel(k)) }
	door.Listings = func(d, k any) ([]door.Listing, error) { return dev(d).listings(kernel(k)) }
	door.Profile = func(d any) string { return dev(d).opts.Profile }
	door.Notes = func(d any) *sync.Map { return &dev(d).notes }
	door.Track = func(b any) { b.(*Buffer).track() }
	door.Overwritten = func(v any) bool { return v.(View).isOverwritten() }
	door.Overwrites = func(r, v any) bool { return r.(*Recorder).writes[v.(View).Buffer].cover(v.(View).bytes()) }
	door.Prove = func(r any) error { return r.(*Recorder).prove() }
	door.StarvedWord = func(d any) (any, error) { return dev(d).starvedWord() }
	door.MayStarve = func(r any) error { return r.(*Recorder).starves() }
	door.HasValidation = hasValidation
	door.Operations = func(c any) int { return c.(*Commands).rec.operations }
}
