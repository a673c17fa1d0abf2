package pipeline

import (
	"context"
	"fmt"
	"io"

	"github.com/vkmla/vkmla/internal/files"
)

// SaveFile makes a snapshot the content of a file, as Save writes it. Whoever opens path finds what
// was there before or all of the snapshot, whatever ends the process meanwhile: it is written to
// .NAME.N.tmp in the same folder, synced and renamed, and the folder is synced. N is 0, or more
// where others save to the same path at that time. If the process is killed, that file stays until
// the next call for the same path removes it; a program may remove what matches .*.tmp when it
// starts. A new file can be read by its owner only; one that is replaced keeps its mode, and a link
// to it stays. On Windows the folder is not synced, and a file that is open cannot be replaced.
//
// Errors: those of Save; the file system's, fs.ErrInvalid for anything but a regular file.
func (s *Session) SaveFile(ctx context.Context, path string) error {
	err := files.Replace(path, 0o600, func(w io.Writer) error { return s.save(ctx, w) })
	if err != nil {
		return fmt.Errorf("%s: %s: %w", opSave, path, err)
	}
	return nil
}

// RestoreFile makes a session of a file that SaveFile wrote, as Restore does. The file may be
// replaced meanwhile.
//
// Errors: those of Restore; the file system's, fs.ErrInvalid for anything but a regular file.
func (e *Engine) RestoreFile(ctx context.Context, path string) (*Session, error) {
	f, _, err := files.Regular(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opRestore, err)
	}
	defer f.Close()
	s, err := e.restore(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", opRestore, path, err)
	}
	return s, nil
}
