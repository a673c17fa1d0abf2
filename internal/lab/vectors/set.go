package vectors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/vkmla/vkmla/internal/files"
)

// manifestBounds: the manifest of all recorded cases has 6,000 values.
var manifestBounds = files.Bounds{Depth: 16, Values: 1 << 17}

const (
	manifestName = "manifest.json"
	maxManifest  = 16 << 20

	// untouched fills a buffer whose earlier content a case leaves out, as the
	// format prescribes.
	untouched = 0xA5

	// maxRefs bounds the references from case to case that are followed; it ends a
	// chain that leads back to its start.
	maxRefs = 4
)

// Set is a folder of recorded cases.
type Set struct {
	Dir     string
	Machine string // what the recorded outputs were computed on
	ops     []setOp
}

type setOp struct {
	Op    string    `json:"op"`
	File  string    `json:"file"`
	About string    `json:"about"`
	Cases []setCase `json:"cases"`
}

type setCase struct {
	Name   string              `json:"name"`
	Case   string              `json:"case"`
	Params map[string]any      `json:"params"`
	Arrays map[string]setArray `json:"arrays"`
}

type setArray struct {
	Shape []int  `json:"shape"`
	Npy   string `json:"npy"`
	Role  string `json:"role"`
}

func malformed(dir, format string, args ...any) error {
	return fmt.Errorf("vectors: %s: %s: %w", dir, fmt.Sprintf(format, args...), ErrFormat)
}

// Open reads the manifest of a folder. The arrays are read later, by Case. The
// error wraps ErrFormat, or is the file system's.
func Open(dir string) (*Set, error) {
	data, err := files.Read(filepath.Join(dir, manifestName), maxManifest)
	if errors.Is(err, files.ErrLarge) {
		return nil, malformed(dir, "%v", err)
	}
	if err != nil {
		return nil, fmt.Errorf("vectors: open: want a folder of recorded cases: %w", err)
	}
	return parseManifest(dir, data)
}

func parseManifest(dir string, data []byte) (*Set, error) {
	var m struct {
		Machine string  `json:"machine"`
		Ops     []setOp `json:"ops"`
	}
	if err := manifestBounds.Check(data); err != nil {
		return nil, malformed(dir, "%s: %v", manifestName, err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber() // so that large integers stay what they are
	if err := dec.Decode(&m); err != nil {
		return nil, malformed(dir, "%s: %s", manifestName, otherJSON(err))
	}
	if len(m.Ops) == 0 {
		return nil, malformed(dir, "%s lists no operations", manifestName)
	}
	s := &Set{Dir: dir, Machine: m.Machine, ops: m.Ops}
	seen := map[string]bool{}
	for _, op := range s.ops {
		if !printable(op.Op) || seen[op.Op] {
			return nil, malformed(dir, "operation name %.60q is empty, unprintable or there twice", op.Op)
		}
		seen[op.Op] = true
		if !printable(op.File) || !filepath.IsLocal(op.File) || filepath.Base(op.File) != op.File {
			return nil, malformed(dir, "%s: file %.60q is not a file of the folder", op.Op, op.File)
		}
		if err := checkCases(op); err != nil {
			return nil, malformed(dir, "%v", err)
		}
	}
	return s, nil
}

// otherJSON says what is wrong with a manifest that could not be decoded.
func otherJSON(err error) string {
	var typ *json.UnmarshalTypeError
	if !errors.As(err, &typ) {
		return err.Error()
	}
	want := "a number"
	switch typ.Type.Kind() {
	case reflect.Struct, reflect.Map:
		want = "an object"
	case reflect.Slice:
		want = "a list"
	case reflect.String:
		want = "a string"
	}
	if typ.Field == "" {
		return fmt.Sprintf("got %s, want an object with a list \"ops\"", typ.Value)
	}
	return fmt.Sprintf("%s: got %s, want %s", typ.Field, typ.Value, want)
}

func checkCases(op setOp) error {
	seen := map[string]bool{}
	for _, c := range op.Cases {
		if !printable(c.Name) || seen[c.Name] {
			return fmt.Errorf("%s: case name %.60q is empty, unprintable or there twice", op.Op, c.Name)
		}
		seen[c.Name] = true
		for name, a := range c.Arrays {
			t := typeNamed(a.Npy)
			if (a.Role == RoleAux || strings.HasPrefix(name, "info_")) && t == 0 {
				delete(c.Arrays, name) // text, say: it is not needed to judge a case
				continue
			}
			if !printable(name) || t == 0 {
				return fmt.Errorf("%s.%s.%.60q: element type %.40q is not supported", op.Op, c.Name, name, a.Npy)
			}
			if _, err := byteSize(t, a.Shape); err != nil {
				return fmt.Errorf("%s.%s.%s: %v", op.Op, c.Name, name, err)
			}
			switch a.Role {
			case RoleIn, RoleBefore, RoleAfter, RoleOut, RoleRef, RoleAux:
			default:
				return fmt.Errorf("%s.%s.%s: role %.40q is not known", op.Op, c.Name, name, a.Role)
			}
		}
	}
	return nil
}

// printable keeps control characters off the terminal and separators out of
// member names.
func printable(name string) bool {
	return name != "" && len(name) <= 200 && !strings.ContainsAny(name, `/\`) &&
		strings.IndexFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

func typeNamed(name string) Type {
	if name == "bool" {
		return U8
	}
	for t, e := range types {
		if e.name == name {
			return t
		}
	}
	return 0
}

// Ops returns the names of the folder's operations, in the manifest's order.
func (s *Set) Ops() []string {
	var names []string
	for _, op := range s.ops {
		names = append(names, op.Op)
	}
	return names
}

// Cases returns the names of an operation's cases, in the manifest's order; nil if
// the folder does not have the operation.
func (s *Set) Cases(op string) []string {
	var names []string
	if o := s.find(op); o != nil {
		for _, c := range o.Cases {
			names = append(names, c.Name)
		}
	}
	return names
}

func (s *Set) find(op string) *setOp {
	for i := range s.ops {
		if s.ops[i].Op == op {
			return &s.ops[i]
		}
	}
	return nil
}

func (s *Set) findCase(op, name string) (*setOp, *setCase) {
	if o := s.find(op); o != nil {
		for i := range o.Cases {
			if o.Cases[i].Name == name {
				return o, &o.Cases[i]
			}
		}
	}
	return nil, nil
}

// Check opens the file of an operation and compares the header of every array
// with the manifest, so that a truncated folder is noticed before anything is
// run. Arrays of other operations that cases refer to are checked with them.
func (s *Set) Check(op string) error {
	o := s.find(op)
	if o == nil {
		return malformed(s.Dir, "has no operation %q", op)
	}
	for _, c := range o.Cases {
		if err := s.walk(o, &c, 0, func(r io.Reader, _ string, a setArray) error {
			return checkNpyHeader(r, typeNamed(a.Npy), a.Shape)
		}); err != nil {
			return err
		}
	}
	return nil
}

// Case reads one case. An unknown operation or case is an error, as is every
// disagreement between the manifest and the arrays.
func (s *Set) Case(op, name string) (Case, error) {
	o, c := s.findCase(op, name)
	if c == nil {
		return Case{}, malformed(s.Dir, "has no case %s.%s", op, name)
	}
	left := allowance(freeBytes)
	return s.read(o, c, 0, &left)
}

func (s *Set) read(o *setOp, c *setCase, depth int, left *allowance) (Case, error) {
	out := Case{Op: o.Op, Name: c.Name, Source: s.Dir, About: c.Case,
		Params: map[string]any{}, In: Arrays{}, Want: Arrays{}, Role: map[string]string{}}
	if ro, rc, err := s.reference(o, c, depth); err != nil {
		return Case{}, err
	} else if rc != nil {
		from, err := s.read(ro, rc, depth+1, left)
		if err != nil {
			return Case{}, err
		}
		maps.Copy(out.Params, from.Params)
		maps.Copy(out.In, from.In)
	}
	maps.Copy(out.Params, c.Params)
	if len(c.Arrays) > 0 {
		if st, err := os.Stat(filepath.Join(s.Dir, o.File)); err == nil {
			left.add(st.Size())
		}
	}
	err := s.walk(o, c, maxRefs, func(r io.Reader, name string, a setArray) error {
		arr, err := readNpy(r, typeNamed(a.Npy), a.Shape, left)
		if err != nil {
			return err
		}
		out.Role[name] = a.Role
		if a.Role == RoleIn || a.Role == RoleBefore {
			out.In[name] = arr
		} else {
			out.Want[name] = arr
		}
		return nil
	})
	if err != nil {
		return Case{}, err
	}
	for name, a := range c.Arrays {
		before, ok := strings.CutSuffix(name, "_after")
		if before += "_before"; ok && a.Role == RoleAfter && out.In[before].IsZero() {
			n, err := byteSize(typeNamed(a.Npy), a.Shape)
			if err == nil {
				err = left.take(n)
			}
			if err != nil {
				return Case{}, malformed(s.Dir, "%s.%s.%s: %v", o.Op, c.Name, before, err)
			}
			out.In[before] = Filled(untouched, typeNamed(a.Npy), a.Shape...)
			out.Role[before] = RoleBefore
		}
	}
	return out, nil
}

// reference finds the case whose inputs c shares: its parameter "inputs" names
// it as operation.case. It returns nil without such a parameter.
func (s *Set) reference(o *setOp, c *setCase, depth int) (*setOp, *setCase, error) {
	p, ok := c.Params["inputs"]
	if !ok {
		return nil, nil, nil
	}
	ref, _ := p.(string)
	op, name, _ := strings.Cut(ref, ".")
	ro, rc := s.findCase(op, name)
	if rc == nil || depth >= maxRefs {
		return nil, nil, malformed(s.Dir, "%s.%s takes its inputs from %.80v, which does not exist or leads in a circle", o.Op, c.Name, p)
	}
	return ro, rc, nil
}

// walk calls visit for the archive member of every array of a case, in the
// order of the names, and then for those of the case it refers to, unless depth
// is already maxRefs.
func (s *Set) walk(o *setOp, c *setCase, depth int, visit func(io.Reader, string, setArray) error) error {
	if len(c.Arrays) > 0 {
		file, err := OpenArchive(filepath.Join(s.Dir, o.File))
		if errors.Is(err, ErrFormat) {
			return err
		}
		if err != nil {
			return malformed(s.Dir, "%s: %v", o.File, err)
		}
		defer file.Close()
		for _, name := range slices.Sorted(maps.Keys(c.Arrays)) {
			if err := file.open(c.Name+"."+name, func(r io.Reader) error { return visit(r, name, c.Arrays[name]) }); err != nil {
				return err
			}
		}
	}
	if depth >= maxRefs {
		return nil
	}
	ro, rc, err := s.reference(o, c, depth)
	if err != nil || rc == nil {
		return err
	}
	return s.walk(ro, rc, depth+1, visit)
}
