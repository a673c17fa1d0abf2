// Package vary changes the numbers of a section of a profile one at a time, for tests that each of
// them decides something.
package vary

import (
	"fmt"
	"reflect"
	"slices"
)

// Idle returns the numbers of a section, by paths such as Short[1].Items, that change the result of
// none of plans when they are doubled or halved, or 1 where they are whole, or flipped. Together
// plans say everything that a package chooses by the section, for some devices and sizes.
func Idle[T any](section T, plans ...func(section *T) string) (fields []string) {
	var want []string
	for _, plan := range plans {
		want = append(want, plan(&section))
	}
	var walk func(path string, at func(v reflect.Value) reflect.Value)
	walk = func(path string, at func(v reflect.Value) reflect.Value) {
		live := func(change func(v reflect.Value)) bool {
			c := clone(reflect.ValueOf(section))
			change(at(c))
			for i, plan := range plans {
				if plan(c.Addr().Interface().(*T)) != want[i] {
					return true
				}
			}
			return false
		}
		idle := false
		switch v := at(clone(reflect.ValueOf(section))); v.Kind() {
		case reflect.Bool:
			idle = !live(func(v reflect.Value) { v.SetBool(!v.Bool()) })
		case reflect.Int:
			idle = !live(func(v reflect.Value) { v.SetInt(max(2*v.Int(), 1)) }) && !live(func(v reflect.Value) { v.SetInt(v.Int() / 2) }) &&
				!live(func(v reflect.Value) { v.SetInt(1) })
		case reflect.Uint64:
			idle = !live(func(v reflect.Value) { v.SetUint(max(2*v.Uint(), 1)) }) && !live(func(v reflect.Value) { v.SetUint(v.Uint() / 2) })
		case reflect.Float64:
			idle = !live(func(v reflect.Value) { v.SetFloat(v.Float() * 2) }) && !live(func(v reflect.Value) { v.SetFloat(v.Float() / 2) })
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
		if idle {
			fields = append(fields, path)
		}
	}
	walk("", func(v reflect.Value) reflect.Value { return v })
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
