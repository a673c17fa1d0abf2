package prefix

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vkmla/vkmla/internal/files"
	"github.com/vkmla/vkmla/vk"
)

// Folder is a Store in a folder, a file for each object. Several processes can use one at a time. A
// file's time of modification is that of its last use.
type Folder struct {
	dir      string
	most     int64
	readOnly error // why nothing can be written

	mu    sync.Mutex
	bytes int64 // since the last look: what was there, and what was put
	look  time.Time
}

// OpenFolder makes a store of a folder, and the folder if need be. It holds at most `most` bytes:
// then what was not used for the longest time goes, a sixteenth at a time; 0: no limit. With
// several processes it may for a minute hold what each has put since more than that. A killed
// process may leave files that begin with a dot, which go after an hour. A folder that is there and
// may not be written to is only read: see ReadOnly.
//
// Errors: vk.ErrArgument for a negative limit; the file system's.
func OpenFolder(dir string, most int64) (*Folder, error) {
	const op = "prefix: open folder"
	if most < 0 {
		return nil, &vk.ArgumentError{Op: op, Arg: "most", Got: fmt.Sprint(most), Want: "at least 0"}
	}
	f := &Folder{dir: dir, most: most}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = files.Replaceable(filepath.Join(dir, "0"))
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		f.readOnly = err
		_, err = os.ReadDir(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return f, nil
}

// ReadOnly returns why the folder could not be written to when it was opened, nil if it could. Put
// does nothing then.
func (f *Folder) ReadOnly() error { return f.readOnly }

// path returns the path of an object.
func (f *Folder) path(ctx context.Context, name string) (string, error) {
	switch {
	case ctx == nil:
		return "", &vk.ArgumentError{Op: "prefix", Arg: "ctx", Got: "nil", Want: "a context"}
	case !isName(name):
		return "", &vk.ArgumentError{Op: "prefix", Arg: "name", Got: fmt.Sprintf("%.80q", name), Want: "64 hexadecimal digits"}
	}
	return filepath.Join(f.dir, name), ctx.Err()
}

func isName(s string) bool { return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "" }

// Get reads a file.
func (f *Folder) Get(ctx context.Context, name string, most int) ([]byte, error) {
	path, err := f.path(ctx, name)
	if err != nil {
		return nil, err
	}
	data, err := files.Read(path, int64(most))
	switch {
	case errors.Is(err, files.ErrLarge), errors.Is(err, fs.ErrInvalid), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	case err != nil:
		return nil, err
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // others may have removed it, or it is theirs: it goes earlier then
	return data, nil
}

// Has looks for a file.
func (f *Folder) Has(ctx context.Context, name string) (bool, error) {
	path, err := f.path(ctx, name)
	if err != nil {
		return false, err
	}
	_, err = os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Put writes a file. On a full disk files go that were not used for the longest time, as if the
// limit were reached. The error wraps fs.ErrInvalid where there is something else under that name,
// or is the file system's.
func (f *Folder) Put(ctx context.Context, name string, data []byte) error {
	path, err := f.path(ctx, name)
	if err != nil || f.readOnly != nil {
		return err
	}
	if err := f.makeRoom(int64(len(data))); err != nil {
		return err
	}
	write := func() error {
		return files.Replace(path, 0o600, func(w io.Writer) error {
			_, err := w.Write(data)
			return err
		})
	}
	if err = write(); !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	if none := f.shrink(int64(len(data))); none != nil {
		return errors.Join(err, none)
	}
	return write()
}

// lookAgain is the time after which objects of other processes are seen.
const lookAgain = time.Minute

// makeRoom removes files that were not used for the longest time until n bytes more fit.
func (f *Folder) makeRoom(n int64) error {
	if f.most == 0 {
		return nil
	}
	if n > f.most {
		return fmt.Errorf("prefix: put: an object of %d bytes, and the folder has at most %d", n, f.most)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.bytes += n; f.bytes <= f.most && time.Since(f.look) < lookAgain {
		return nil
	}
	list, sum, err := f.list()
	if err != nil {
		return err
	}
	if sum+n > f.most {
		sum -= f.remove(list, sum+n-(f.most-f.most/16))
	}
	f.bytes, f.look = sum+n, time.Now()
	return nil
}

// shrink removes a sixteenth of what is there, and as much as n bytes at least.
func (f *Folder) shrink(n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	list, sum, err := f.list()
	if err != nil {
		return err
	}
	f.bytes, f.look = sum-f.remove(list, max(sum/16, n)), time.Now()
	return nil
}

// remove removes files that were not used for the longest time, n bytes at least, and returns their
// bytes.
func (f *Folder) remove(list []fs.FileInfo, n int64) (gone int64) {
	slices.SortFunc(list, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), strings.Compare(a.Name(), b.Name()))
	})
	for _, st := range list {
		if gone >= n {
			break
		}
		// Where it cannot be removed, as while it is read on Windows, another one goes.
		if err := os.Remove(filepath.Join(f.dir, st.Name())); err == nil || errors.Is(err, fs.ErrNotExist) {
			gone += st.Size()
		}
	}
	return gone
}

// leftOver is the age at which a temporary file is taken to be abandoned.
const leftOver = time.Hour

// list looks at all files, and removes what killed processes left.
func (f *Folder) list() (list []fs.FileInfo, sum int64, err error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, 0, err
	}
	for _, e := range entries {
		name, temporary := strings.CutSuffix(e.Name(), ".tmp")
		ours := isName(e.Name()) || temporary && len(name) > 65 && isName(name[1:65])
		st, err := e.Info()
		if err != nil || !ours || !st.Mode().IsRegular() {
			continue // it is gone, or not ours
		}
		if temporary && time.Since(st.ModTime()) > leftOver {
			_ = os.Remove(filepath.Join(f.dir, e.Name()))
			continue
		}
		if sum += st.Size(); !temporary {
			list = append(list, st)
		}
	}
	return list, sum, nil
}
