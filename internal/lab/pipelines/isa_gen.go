package pipelines

import (
	"regexp"
	"strings"
)

var (
	genLabel = regexp.MustCompile(`^L(\d+):`)
	genCode  = regexp.MustCompile(`^(?:\([^)]*\))?\s+([a-z][\w.]*) \(\d+\)(.*)`)
	genWhile = regexp.MustCompile(`\bL(\d+)`)
)

// genControl are instructions of Intel's GPUs that only say which comes next.
var genControl = map[string]bool{"if": true, "else": true, "endif": true, "while": true, "break": true, "cont": true,
	"halt": true, "jmpi": true, "goto": true, "join": true, "brd": true, "brc": true, "ret": true}

// addGen counts an instruction of Intel's instruction sets; rest is its operands and, of a message,
// what it asks for.
func (c *Counts) addGen(name, rest string) {
	unit, _, _ := strings.Cut(name, ".")
	switch {
	case unit == "dpas":
		c.Matrix++
	case unit == "dp4a":
		c.Dot++
	case unit == "sync" || strings.Contains(rest, "fence."):
		c.Wait++
	case strings.Contains(rest, "barrier_msg"):
		c.Barrier++
	case name == "send.slm":
		c.LDS++
		if strings.Contains(rest, "load.slm.d16") {
			c.Gather++
		}
	case unit == "send" || unit == "sendc":
		c.Memory++
	case genControl[unit]:
		c.Scalar++
	default:
		c.Vector++
	}
}

// ReadGenListing reads ANV's listing of a kernel as ReadListing does RADV's. A turn of a loop takes
// all from the label that its last instruction names.
func ReadGenListing(text string) Listing {
	blocks := []block{{label: -1}}
	for line := range strings.Lines(text) {
		if m := genLabel.FindStringSubmatch(line); m != nil {
			blocks = append(blocks, block{label: number(m[1])})
		} else if m := genCode.FindStringSubmatch(line); m != nil {
			b := &blocks[len(blocks)-1]
			b.counts.addGen(m[1], m[2])
			if m[1] == "while" {
				if t := genWhile.FindStringSubmatch(m[2]); t != nil {
					b.to = append(b.to, number(t[1]))
				}
				blocks = append(blocks, block{label: -1})
			}
		}
	}
	return listingOf(blocks)
}
