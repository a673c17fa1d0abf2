package weights

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/vkmla/vkmla/internal/files"
	"github.com/vkmla/vkmla/pipeline/model"
)

// digestName is the file of a model's folder that keeps what was read of each of its files.
const digestName = ".vkmla-digests.json"

// digestPiece is the number of bytes that one goroutine reads at a time, a multiple of every
// element's size.
const digestPiece = 16 << 20

// settled is the least age of a file whose digest is kept: a change right after would leave its
// size and its time as they are.
const settled = 2 * time.Second

// digest records the result of reading a whole file. Size, times and inode tell whether it is still
// the file that was read, Tensors whether the same tensors are taken of it.
type digest struct {
	Size     int64  `json:"size"`
	Modified int64  `json:"modified_ns"`
	Inode    uint64 `json:"inode"`
	Changed  int64  `json:"changed_ns"` // on Linux
	Tensors  string `json:"tensors"`    // SHA-256 of their names, types and shapes
	Bytes    string `json:"bytes"`      // SHA-256 of the SHA-256s of their pieces
}

type digests struct {
	Form  int               `json:"form"`
	Files map[string]digest `json:"files"`
}

// digestForm changes when the same files have other digests.
const digestForm = 1

// Examine reads every byte of every tensor once, for Identity, and refuses numbers that are not
// finite. What it found is kept beside the files, so that the next start looks at sizes and times
// alone. A folder that cannot be written to is read each time.
//
// Errors: *model.CheckpointError for a number that is not finite, by its place; the context's.
func (m *Model) Examine(ctx context.Context, log *slog.Logger) error {
	of := map[string][]string{} // stored names by file
	for _, stored := range m.tensors.Names() {
		t, err := m.tensors.Tensor(stored)
		if err != nil {
			return err
		}
		of[t.File] = append(of[t.File], stored)
	}
	kept, now := loadDigests(m.dir), digests{digestForm, map[string]digest{}}
	news := false
	for _, file := range slices.Sorted(maps.Keys(of)) {
		d, old, err := m.stat(file, of[file])
		if err != nil {
			return err
		}
		if same := kept.Files[file]; same.Bytes != "" {
			if d.Bytes = same.Bytes; d == same {
				now.Files[file] = d
				continue
			}
		}
		began := time.Now()
		if d.Bytes, err = m.readAll(ctx, of[file]); err != nil {
			return err
		}
		log.Info("read all weights of a file once", "file", file, "bytes", d.Size, "time", time.Since(began))
		if now.Files[file] = d; old {
			kept.Files[file], news = d, true
		}
	}
	h := sha256.New()
	if err := json.NewEncoder(h).Encode(m.Config); err != nil {
		return err
	}
	for _, file := range slices.Sorted(maps.Keys(now.Files)) {
		fmt.Fprintln(h, now.Files[file].Tensors, now.Files[file].Bytes)
	}
	m.identity, m.files = hex.EncodeToString(h.Sum(nil)), now.Files
	if news {
		if err := kept.save(m.dir); err != nil {
			log.Warn("the weights are read again at the next start: what was found cannot be kept beside them", "error", err)
		}
	}
	return nil
}

// Identity tells the weights from others, once Examine has read them.
func (m *Model) Identity() string { return m.identity }

// Intact reports that a file was written to since Examine read it: what is mapped is then not what
// was read, and where the file became shorter, reading it would end the program. A file that
// another one replaced stays mapped as it was.
//
// Errors: *model.CheckpointError.
func (m *Model) Intact() error {
	for file, d := range m.files {
		info, err := os.Stat(filepath.Join(m.dir, file))
		if err != nil || inode(info) != d.Inode {
			continue // removed, or replaced
		}
		if info.Size() != d.Size || info.ModTime().UnixNano() != d.Modified {
			return &model.CheckpointError{File: file, Tensor: "all", Got: "a file that was written to while it is in use",
				Want: "the file that was read when the program started"}
		}
	}
	return nil
}

// stat says what a file is, and whether it was left alone for a while.
func (m *Model) stat(file string, names []string) (d digest, old bool, err error) {
	info, err := os.Stat(filepath.Join(m.dir, file))
	if err != nil {
		return d, false, err
	}
	h := sha256.New()
	for _, name := range names {
		t, err := m.tensors.Tensor(name)
		if err != nil {
			return d, false, err
		}
		fmt.Fprintf(h, "%q %s %v\n", name, t.DType, t.Shape)
	}
	d = digest{Size: info.Size(), Modified: info.ModTime().UnixNano(), Inode: inode(info), Changed: changed(info),
		Tensors: hex.EncodeToString(h.Sum(nil))}
	return d, time.Since(info.ModTime()) > settled, nil
}

// readAll reads the tensors of one file, pieces side by side.
func (m *Model) readAll(ctx context.Context, names []string) (string, error) {
	type piece struct {
		t  model.Tensor
		at int
	}
	var pieces []piece
	for _, name := range names {
		t, err := m.tensors.Tensor(name)
		if err != nil {
			return "", err
		}
		for at := 0; at < max(1, len(t.Data)); at += digestPiece {
			pieces = append(pieces, piece{t, at})
		}
	}
	sums := make([][sha256.Size]byte, len(pieces))
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		g.Go(func() error {
			for i := next.Add(1) - 1; int(i) < len(pieces); i = next.Add(1) - 1 {
				if err := ctx.Err(); err != nil {
					return err
				}
				p := pieces[i]
				err := m.tensors.Read(func() error {
					data := p.t.Data[p.at:min(p.at+digestPiece, len(p.t.Data))]
					sums[i] = sha256.Sum256(data)
					return finite(p.t, p.at, data)
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return "", err
	}
	h := sha256.New()
	for _, s := range sums {
		h.Write(s[:])
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// loadDigests returns what was kept; nothing if it cannot be read or is of another form.
func loadDigests(dir string) digests {
	var d digests
	data, err := files.Read(filepath.Join(dir, digestName), 64<<20)
	if err != nil || json.Unmarshal(data, &d) != nil || d.Form != digestForm || d.Files == nil {
		return digests{digestForm, map[string]digest{}}
	}
	return d
}

func (d digests) save(dir string) error {
	data, err := json.MarshalIndent(d, "", "\t")
	if err != nil {
		return err
	}
	return files.Replace(filepath.Join(dir, digestName), 0o644, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}
