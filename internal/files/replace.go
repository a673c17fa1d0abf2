package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// Replace makes what write writes the content of a file. Whoever opens path finds what was there
// before or all that is new, also after the process was killed, and after the machine failed where
// the disk keeps what it was told to. A link is followed; a file that is there keeps its mode, a
// new one gets perm, less the umask.
//
// Until it is complete the file is called .NAME.N.tmp, in the same folder. N is 0, or the first
// number that no other process writes to path by. A killed process leaves that file; the next one
// that writes to path removes it. So there are never more of them than processes and goroutines
// wrote to path at the same time.
//
// Errors: fs.ErrInvalid for what is no regular file; write's; the file system's. After an error the
// old file is there, unless only the folder could not be synced.
func Replace(path string, perm fs.FileMode, write func(io.Writer) error) error {
	t, err := newTemporary(path, perm)
	if err != nil {
		return err
	}
	defer t.discard() // also where write panics
	if err := write(t.f); err != nil {
		return err
	}
	return t.commit()
}

// Replaceable reports why Replace could not even begin.
func Replaceable(path string) error {
	t, err := newTemporary(path, 0o666)
	if err == nil {
		t.discard()
	}
	return err
}

// temporary is a file that is to become another.
type temporary struct {
	f       *os.File
	path    string      // of the other
	old     fs.FileInfo // nil: there is none
	renamed bool
}

func newTemporary(path string, perm fs.FileMode) (*temporary, error) {
	t := &temporary{path: path}
	err := t.find(path)
	for range mostTries { // while others make and remove it
		if !errors.Is(err, errChanged) {
			break
		}
		err = t.find(path)
	}
	if err == nil {
		t.f, err = claim(t.path, perm)
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// errChanged: a file came or went while it was looked at.
var errChanged = errors.New("others make and remove the file")

// find looks for the old file.
func (t *temporary) find(path string) error {
	switch st, err := os.Stat(path); {
	case err == nil && !st.Mode().IsRegular():
		return irregular(path)
	case err == nil:
		to, err := filepath.EvalSymlinks(path)
		if errors.Is(err, fs.ErrNotExist) {
			return errChanged
		}
		t.old, t.path = st, to
		return err
	default:
		st, e := os.Lstat(path)
		switch {
		case e == nil && st.Mode()&fs.ModeSymlink == 0:
			return errChanged
		case e == nil || !errors.Is(err, fs.ErrNotExist):
			return err // a link to nothing: the file would have to be made where it leads
		}
		return nil
	}
}

const (
	mostWriters = 1 << 10          // of a path at the same time
	mostTries   = 100              // for one name, while others remove what they find there
	quiet       = 10 * time.Second // without locks: how long nothing writes to what was left
)

// claim makes the temporary file for path, and keeps it from being taken for one that was left
// behind.
func claim(path string, perm fs.FileMode) (*os.File, error) {
	dir, base := filepath.Split(path)
	for n := range mostWriters {
		name := filepath.Join(dir, fmt.Sprintf(".%s.%d.tmp", base, n))
		for range mostTries {
			f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
			if errors.Is(err, fs.ErrExist) {
				if removeLeftOver(name) {
					continue
				}
				break // another process writes it
			}
			if err != nil {
				return nil, err
			}
			if lock(f) != lockedByOther && isNamed(f, name) {
				return f, nil
			}
			f.Close() // removed before the lock
		}
	}
	return nil, &fs.PathError{Op: "replace", Path: path, Err: fmt.Errorf("%d others write to it: %w", mostWriters, fs.ErrExist)}
}

// removeLeftOver removes a temporary file unless a process writes it, and reports whether the name
// may be free now.
func removeLeftOver(name string) bool {
	f, st, err := Regular(name)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	switch lock(f) {
	case lockedByOther:
		return false
	case unlockable:
		f.Close() // some systems remove no open file
		return time.Since(st.ModTime()) > quiet && os.Remove(name) == nil
	}
	// Whoever made it has renamed it before giving up the lock, or is dead.
	return !isNamed(f, name) || os.Remove(name) == nil
}

// isNamed reports whether a file still has a name.
func isNamed(f *os.File, name string) bool {
	a, err1 := f.Stat()
	b, err2 := os.Lstat(name)
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}

// commit gives the file its name.
func (t *temporary) commit() error {
	if t.old != nil {
		if err := t.f.Chmod(t.old.Mode().Perm()); err != nil {
			return err
		}
	}
	if err := t.f.Sync(); err != nil {
		return err
	}
	if runtime.GOOS == "windows" { // it renames no open file
		if err := t.f.Close(); err != nil {
			return err
		}
	}
	if err := os.Rename(t.f.Name(), t.path); err != nil {
		return err
	}
	t.renamed = true
	return syncFolder(filepath.Dir(t.path))
}

// discard removes the file unless it got its name.
func (t *temporary) discard() {
	if runtime.GOOS == "windows" { // it removes no open file
		t.f.Close()
	}
	if !t.renamed {
		os.Remove(t.f.Name())
	}
	t.f.Close() // gives up the lock, which is held while the name is in use
}

// Values of lock.
const (
	locked = iota
	lockedByOther
	unlockable // this system or file system has no such locks
)
