// Package vary changes the numbers of a section of a profile one at a time, for tests that each of
// them decides something.
package vary

import (
	"fmt"
	"reflect"
	"slices"
)

// Section is a section with one number changed.
type Section[T any] struct {
	Field string // the path of the number, such as Short[1].Items
	Value T
}

// Each returns the section with each number doubled and halved, whole ones as 1, too, and each flag
// flipped.
func Each[T any](section T) (all []Section[T]) {
	var walk func(path string, at func(v reflect.Value) reflect.Value)
	walk = func(path string, at func(v reflect.Value) reflect.Value) {
		change := func(set func(v reflect.Value)) {
			c := clone(reflect.ValueOf(section))
			set(at(c))
			all = append(all, Section[T]{path, c.Interface().(T)})
		}
		switch v := at(clone(reflect.ValueOf(section))); v.Kind() {
		case reflect.Bool:
			change(func(v reflect.Value) { v.SetBool(!v.Bool()) })
		case reflect.Int:
			change(func(v reflect.Value) { v.SetInt(v.Int()*2 + b2i(v.Int() == 0)) })
			change(func(v reflect.Value) { v.SetInt(v.Int() / 2) })
			change(func(v reflect.Value) { v.SetInt(1) })
		case reflect.Uint64:
			change(func(v reflect.Value) { v.SetUint(v.Uint()*2 + uint64(b2i(v.Uint() == 0))) })
			change(func(v reflect.Value) { v.SetUint(v.Uint() / 2) })
		case reflect.Float64:
			change(func(v reflect.Value) { v.SetFloat(v.Float() * 2) })
			change(func(v reflect.Value) { v.SetFloat(v.Float() / 2) })
		case reflect.Struct:
			for i := range v.NumField() {
				walk(path+"."+v.Type().Field(i).Name, func(v reflect.Value) reflect.Value { return at(v).Field(i) })
			}
		case reflect.Slice:
			for i := range v.Len() {
				walk(fmt.Sprintf("%s[%d]", path, i), func(v reflect.Value) reflect.Value { return at(v).Index(i) })
			}
		default:
			panic(fmt.Sprintf("vary: %s is a %s", path, v.Type()))
		}
	}
	walk("", func(v reflect.Value) reflect.Value { return v })
	return all
}

// Idle returns the numbers of a section whose changes never change the result of plan: everything
// that a package chooses by the section, for some devices and sizes.
func Idle[T any](section T, plan func(section *T) string) (fields []string) {
	want, live := plan(&section), map[string]bool{}
	var order []string
	for _, s := range Each(section) {
		if _, known := live[s.Field]; !known {
			order = append(order, s.Field)
			live[s.Field] = false
		}
		if !live[s.Field] && plan(&s.Value) != want {
			live[s.Field] = true
		}
	}
	for _, f := range order {
		if !live[f] {
			fields = append(fields, f)
		}
	}
	return fields
}

// clone is an addressable copy that shares no slice.
func clone(v reflect.Value) reflect.Value {
	c := reflect.New(v.Type()).Elem()
	c.Set(v)
	unshare(c)
	return c
}

func unshare(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			unshare(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.AppendSlice(reflect.MakeSlice(v.Type(), 0, v.Len()), v))
		for i := range v.Len() {
			unshare(v.Index(i))
		}
	}
}

func b2i(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// Distinct calls f with the name of each profile whose sections differ from those of all before it:
// profiles share most, and what holds of one set of numbers need not be tried again.
func Distinct(names []string, sections func(name string) any, f func(name string)) {
	var seen []any
	for _, name := range names {
		s := sections(name)
		if !slices.ContainsFunc(seen, func(o any) bool { return reflect.DeepEqual(o, s) }) {
			seen = append(seen, s)
			f(name)
		}
	}
}
