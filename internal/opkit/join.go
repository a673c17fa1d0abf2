package opkit

import "math"

// Join is a form in which the parts of a row of attention are joined. Which parts are added before
// which others decides the bits, so package attention and what joins rows in front of a linear
// layer both take their forms from here.
//
// JoinLanes invocations have four numbers of a head each. Groups of them take turns of Ahead parts,
// in the order of the parts' numbers; then the groups' sums are added in the order of theirs.
type Join struct {
	Parts  int // the most that the form is for
	Ahead  int // parts that an invocation loads at a time; one that is loaded for nothing takes as long as another
	Groups int
}

// Joins are the forms, by the most parts that they are for.
var Joins = []Join{{2, 2, 1}, {4, 4, 1}, {8, 4, 2}, ChainJoin, {math.MaxInt, 4, 8}}

// ChainJoin is the form of the most parts that are joined in front of a linear layer: more are
// joined sooner by larger workgroups, in a launch of their own. Forms of fewer parts have no more
// groups, and none of these has a second turn, so that ChainJoin's groups give their bits.
var ChainJoin = Join{40, 5, 4}

// JoinLanes counts the invocations that have a head's numbers.
const JoinLanes = 128

// Threads is the invocations that join a head.
func (j Join) Threads() int { return JoinLanes * j.Groups }

// JoinOf returns the form for a number of parts.
func JoinOf(parts int) Join {
	for _, j := range Joins {
		if parts <= j.Parts {
			return j
		}
	}
	return Joins[len(Joins)-1]
}
