// Command subset copies chosen cases of a folder of recorded vectors into
// another folder of the same format. The arrays are copied as they are
// compressed, so they stay bit for bit what was recorded.
//
//	go run ./internal/lab/vectors/subset -from DIR -to testdata/golden -cases testdata/cases.txt
//
// The list has one case per line, as operation.case; empty lines and lines that
// start with # are ignored. Cases that a chosen case takes its inputs from have
// to be in the list as well.
package main

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/files"
	"github.com/vkmla/vkmla/internal/lab/vectors"
)

// maxFile keeps single files small enough for any host of the repository.
const maxFile = 2 << 20

func main() {
	from := flag.String("from", "", "folder to copy from")
	to := flag.String("to", "", "folder to write to, emptied of .npz files first")
	cases := flag.String("cases", "", "file that lists the cases")
	flag.Parse()
	if err := subset(*from, *to, *cases); err != nil {
		fmt.Fprintln(os.Stderr, "subset:", err)
		os.Exit(1)
	}
}

func subset(from, to, list string) error {
	chosen, err := readList(list)
	if err != nil {
		return err
	}
	manifest, ops, err := chooseCases(filepath.Join(from, "manifest.json"), chosen)
	if err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(to, "*.npz"))
	if err != nil {
		return err
	}
	for _, f := range old {
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, op := range ops {
		if err := copyMembers(filepath.Join(from, op.file), filepath.Join(to, op.file), op.cases); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(to, "manifest.json"), manifest, 0o644); err != nil {
		return err
	}
	return check(to)
}

// maxRead bounds the bytes of a list or manifest.
const maxRead = 64 << 20

// readList reads the names of the wanted cases.
func readList(file string) (map[string]bool, error) {
	data, err := files.Read(file, maxRead)
	if err != nil {
		return nil, err
	}
	chosen := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			chosen[line] = true
		}
	}
	return chosen, nil
}

type chosenOp struct {
	file  string
	cases []string
}

// chooseCases returns the manifest with only the chosen cases in it, and their
// names by operation. Fields that it does not know are kept.
func chooseCases(file string, chosen map[string]bool) ([]byte, []chosenOp, error) {
	data, err := files.Read(file, maxRead)
	if err != nil {
		return nil, nil, err
	}
	var m map[string]any
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&m); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	all, _ := m["ops"].([]any)
	var ops []chosenOp
	var kept []any
	for _, o := range all {
		op, _ := o.(map[string]any)
		name, _ := op["op"].(string)
		archive, _ := op["file"].(string)
		c := chosenOp{file: archive}
		var cases []any
		list, _ := op["cases"].([]any)
		for _, e := range list {
			one, _ := e.(map[string]any)
			id, _ := one["name"].(string)
			if chosen[name+"."+id] {
				delete(chosen, name+"."+id)
				c.cases = append(c.cases, id)
				cases = append(cases, e)
			}
		}
		if len(cases) == 0 {
			continue
		}
		delete(op, "bytes") // the size of the whole archive
		op["cases"] = cases
		ops, kept = append(ops, c), append(kept, op)
	}
	for missing := range chosen {
		return nil, nil, fmt.Errorf("%s has no case %s", file, missing)
	}
	m["ops"] = kept
	out, err := json.MarshalIndent(m, "", " ")
	return append(out, '\n'), ops, err
}

// copyMembers writes an archive with the members of the given cases.
func copyMembers(from, to string, cases []string) error {
	src, err := zip.OpenReader(from)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	defer src.Close()
	var buf bytes.Buffer
	dst := zip.NewWriter(&buf)
	for _, f := range src.File {
		id, _, _ := strings.Cut(f.Name, ".")
		if !slices.Contains(cases, id) {
			continue
		}
		if err := dst.Copy(f); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	if err := dst.Close(); err != nil {
		return err
	}
	if buf.Len() > maxFile {
		return fmt.Errorf("%s would have %d bytes, more than %d: choose fewer cases", to, buf.Len(), maxFile)
	}
	return os.WriteFile(to, buf.Bytes(), 0o644)
}

// check reads everything back.
func check(dir string) error {
	s, err := vectors.Open(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, op := range s.Ops() {
		for _, name := range s.Cases(op) {
			_, err := s.Case(op, name)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
