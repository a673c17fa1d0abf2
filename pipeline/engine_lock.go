package pipeline

import "sync"

// engineLock guards what an engine knows. Lock is for those that change it, look for those that
// only read it and must not wait for the device: while the holder of Lock is in wait, they get in.
type engineLock struct{ changes, looks sync.Mutex }

func (l *engineLock) Lock() {
	l.changes.Lock()
	l.looks.Lock()
}

func (l *engineLock) Unlock() {
	l.looks.Unlock()
	l.changes.Unlock()
}

// look lets nobody change anything until the function that it returns is called.
func (l *engineLock) look() (done func()) {
	l.looks.Lock()
	return l.looks.Unlock
}

// wait runs what waits for the device. The caller has the lock, and leaves nothing half done that
// those who look would see.
func (l *engineLock) wait(f func() error) error {
	l.looks.Unlock()
	defer l.looks.Lock()
	return f()
}
