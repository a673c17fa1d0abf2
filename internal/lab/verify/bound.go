package verify

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// outs names the tensors of a launch that are read back.
type outs = map[string]tensor.Tensor

// refBy makes an Op's Ref of what reads a case and what computes its outputs.
func refBy[X any](read func(Case) (X, error), ref func(X) (Arrays, error)) func(Case) (Arrays, error) {
	return func(c Case) (Arrays, error) {
		x, err := read(c)
		if err != nil {
			return nil, err
		}
		return ref(x)
	}
}

// bindBy makes an Op's Bind of what reads a case and what makes the operation for it.
func bindBy[X any](read func(Case) (X, error), bind func(Build, X) (Bound, error)) func(Build, Case) (Bound, error) {
	return func(b Build, c Case) (Bound, error) {
		x, err := read(c)
		if err != nil {
			return Bound{}, err
		}
		return bind(b, x)
	}
}

// compareBy makes an Op's Compare of what reads a case and what adds criteria to a comparison.
func compareBy[X any](class string, read func(Case) (X, error),
	judge func(cmp *Comparison, c Case, x X, got, want Arrays)) func(c Case, got, want Arrays) Result {
	return func(c Case, got, want Arrays) Result {
		cmp := NewComparison(class)
		if x, err := read(c); err != nil {
			cmp.Fail("%v", err)
		} else {
			judge(cmp, c, x, got, want)
		}
		return cmp.Result()
	}
}

// with returns f with its second argument given, as for the operations of one format.
func with[A, B, R any](f func(A, B) R, b B) func(A) R { return func(a A) R { return f(a, b) } }

// readAs is with for a function that also returns an error.
func readAs[A, B, R any](f func(A, B) (R, error), b B) func(A) (R, error) {
	return func(a A) (R, error) { return f(a, b) }
}

// bound returns an operation that was made, unless that failed. One that names no build has one.
func bound(op any, err error, place func(r *Rig) Launch) (Bound, error) {
	if err != nil {
		return Bound{}, err
	}
	if v, ok := op.(interface{ Variant() string }); ok {
		return Bound{v.Variant(), place}, nil
	}
	return Bound{opkit.Base, place}, nil
}

// launch returns the launch of an operation with its operands.
func launch[A any](op interface {
	Record(rec *vk.Recorder, a A) error
}, a A, out outs) Launch {
	return Launch{Out: out, Args: &a, Record: func(rec *vk.Recorder) error { return op.Record(rec, a) }}
}

// fields reads a case into the fields of a struct, in their order, by their tags. The tag of an
// array has its name, with "?" where a case may lack it and "+" where only the first rows count,
// its type and its axes:
//
//	Positions Array `in:"positions i32 T"`
//	Weight    Array `in:"weight f32|u16 N"`
//	Table     Array `in:"block_table? i32 * *"`
//
// An axis is *, for any size, a number, or a field of type int, also with a number after "+": the
// first array that has it sets a field that is 0. The type "rows" takes positions, i64, and gives
// the rows of the case's table of angles, i32. The tag of a number has the name of a parameter,
// and after "=" its value where a case may lack it. Fields without a tag are left alone; those of
// an embedded struct are read in its place.
func fields[X any](c Case) (x X, err error) {
	in := c.Input()
	v := reflect.ValueOf(&x).Elem()
	err = fieldsOf(in, c, v, v)
	if in.Err() != nil {
		err = in.Err()
	}
	return x, err
}

func fieldsOf(in *vectors.Input, c Case, all, v reflect.Value) (err error) {
	for i := range v.NumField() {
		f, is := v.Field(i), v.Type().Field(i)
		tag := is.Tag.Get("in")
		switch {
		case is.Anonymous && f.Kind() == reflect.Struct:
			err = errors.Join(err, fieldsOf(in, c, all, f))
		case tag == "":
		default:
			field(in, c, all, f, tag)
			if a, ok := f.Addr().Interface().(*Array); ok && strings.Contains(tag, " rows ") && in.Err() == nil && !a.IsZero() {
				rows, wrong := tableRows(c, *a)
				*a, err = rows, errors.Join(err, wrong)
			}
		}
	}
	return err
}

// tableRows returns the rows of a case's table that belong to positions: cos_sin_pos says which
// position a row is for, so that a few rows stand for a table of any length, and without it row p
// is for position p.
func tableRows(c Case, positions Array) (Array, error) {
	rows := map[int64]int32{}
	if known := c.Input().Optional("cos_sin_pos", vectors.I64, c.In["cos_sin_rows"].Dim(0)); !known.IsZero() {
		for row, p := range known.I64() {
			rows[p] = int32(row)
		}
	}
	at := make([]int32, positions.Dim(0))
	for i, p := range positions.I64() {
		at[i] = int32(p)
		if row, ok := rows[p]; ok {
			at[i] = row
		} else if len(rows) > 0 {
			return Array{}, fmt.Errorf("verify: %s.%s: no row of the table for position %d: %w", c.Op, c.Name, p, vectors.ErrFormat)
		}
	}
	return vectors.FromI32(at, len(at)), nil
}

func field(in *vectors.Input, c Case, all, f reflect.Value, tag string) {
	name, otherwise, optional := strings.Cut(tag, "=")
	number, _ := strconv.Atoi(otherwise)
	switch f.Kind() {
	case reflect.Int, reflect.Uint8:
		if !optional {
			number = in.Int(name)
		} else {
			number = in.IntOr(name, number)
		}
		if f.Kind() == reflect.Int {
			f.SetInt(int64(number))
		} else {
			f.SetUint(uint64(max(0, min(number, 255))))
		}
	case reflect.Bool:
		f.SetBool(in.IntOr(name, number) != 0)
	case reflect.Float32:
		if _, has := c.Params[name]; has || !optional {
			f.SetFloat(in.Float(name))
		}
	default:
		f.Set(reflect.ValueOf(array(in, c, all, strings.Fields(tag))))
	}
}

// elements are the types of arrays by their names in tags.
var elements = map[string]vectors.Type{"u8": vectors.U8, "u16": vectors.U16, "u32": vectors.U32, "f32": vectors.F32,
	"i32": vectors.I32, "i64": vectors.I64, "rows": vectors.I64}

func array(in *vectors.Input, c Case, all reflect.Value, tag []string) Array {
	name, optional := strings.CutSuffix(tag[0], "?")
	name, first := strings.CutSuffix(name, "+")
	element, other, _ := strings.Cut(tag[1], "|")
	if other != "" && c.In[name].Type == elements[other] {
		element = other
	}
	dims, sets := make([]int, len(tag)-2), make([]reflect.Value, len(tag)-2)
	for i, axis := range tag[2:] {
		dims[i], sets[i] = axisOf(all, axis)
	}
	var a Array
	switch {
	case first:
		a = in.First(max(dims[0], 0), name, elements[element], dims[1:]...)
	case optional:
		a = in.Optional(name, elements[element], dims...)
	default:
		a = in.Array(name, elements[element], dims...)
	}
	for i, f := range sets {
		if f.IsValid() && !a.IsZero() {
			f.SetInt(int64(a.Dim(i)))
		}
	}
	return a
}

// axisOf returns the size of an axis, -1 for any, and the field that it sets, if it does.
func axisOf(all reflect.Value, axis string) (size int, set reflect.Value) {
	if axis == "*" {
		return -1, set
	}
	name, more, _ := strings.Cut(axis, "+")
	extra, _ := strconv.Atoi(more)
	if n, err := strconv.Atoi(name); err == nil {
		return n + extra, set
	}
	f := all.FieldByName(name)
	if !f.IsValid() {
		panic(fmt.Sprintf("verify: no field %q of %v", name, all.Type()))
	}
	if f.Int() == 0 && more == "" {
		return -1, f
	}
	return int(f.Int()) + extra, set
}
