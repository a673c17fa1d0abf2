package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// numbers is a flag of several numbers and ranges with commas: 1,4-8 or 1..64:x2, or as llama-bench
// has them, 4-8+2 or 1-64*2.
type numbers struct {
	list  *[]int
	given bool
}

// numbersWanted says what numbers reads.
const numbersWanted = "numbers and ranges with commas, as 1,4-8, 0..64:+16 or 1..64:x2"

// mostNumbers bounds what a slip of a range makes.
const mostNumbers = 1000

var numberRange = regexp.MustCompile(`^(\d+)(?:(?:-|\.\.)(\d+)(?::?([x*+])(\d+))?)?$`)

// Set reads a value. What is given again is added, as other flags of lists do.
func (n *numbers) Set(text string) error {
	var list []int
	for part := range strings.SplitSeq(text, ",") {
		m := numberRange.FindStringSubmatch(strings.TrimSpace(part))
		if m == nil {
			return fmt.Errorf("%q is no number and no range", part)
		}
		first, err := strconv.Atoi(m[1])
		if err != nil {
			return err
		}
		last, by, step := first, "+", 1
		if m[2] != "" {
			if last, err = strconv.Atoi(m[2]); err != nil {
				return err
			}
		}
		if m[3] != "" {
			by = m[3]
			if step, err = strconv.Atoi(m[4]); err != nil {
				return err
			}
		}
		if last < first || by == "+" && step < 1 || by != "+" && (step < 2 || first < 1) {
			return fmt.Errorf("%q leads nowhere", part)
		}
		for x := first; x <= last; {
			if list = append(list, x); len(list) > mostNumbers {
				return fmt.Errorf("%q has more than %d numbers", text, mostNumbers)
			}
			if by == "+" {
				if x > last-step {
					break
				}
				x += step
			} else {
				if x > last/step {
					break
				}
				x *= step
			}
		}
	}
	if !n.given {
		*n.list, n.given = nil, true
	}
	*n.list = append(*n.list, list...)
	return nil
}

// String lists the numbers, as they stand in messages.
func (n *numbers) String() string {
	if n.list == nil {
		return ""
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(*n.list), " ", ","), "[]")
}

// Type returns what the help calls the value.
func (n *numbers) Type() string { return "numbers" }
