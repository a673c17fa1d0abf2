package verify

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/vkmla/vkmla/vk"
)

// patternMark begins a name that is a regular expression of names.
const patternMark = "~"

// expressions are those that were asked for, compiled; nil for one that cannot be.
var expressions sync.Map

// Matches reports whether asked is a regular expression, as ~^fused_.*fp8$, and finds anything in
// the name.
func Matches(asked, name string) bool {
	text, ok := strings.CutPrefix(asked, patternMark)
	if !ok {
		return false
	}
	x, found := expressions.Load(text)
	if !found {
		r, _ := regexp.Compile(text) // CheckPatterns tells of errors
		x, _ = expressions.LoadOrStore(text, r)
	}
	r := x.(*regexp.Regexp)
	return r != nil && r.MatchString(name)
}

// CheckPatterns returns a vk.ErrArgument for what looks like a regular expression and is none.
func CheckPatterns(op, arg string, asked []string) error {
	for _, a := range asked {
		text, ok := strings.CutPrefix(a, patternMark)
		if !ok {
			continue
		}
		if _, err := regexp.Compile(text); err != nil {
			return &vk.ArgumentError{Op: op, Arg: arg, Got: fmt.Sprintf("%q: %v", a, err), Want: "a regular expression after ~"}
		}
	}
	return nil
}
