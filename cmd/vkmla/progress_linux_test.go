package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A terminal that says that it is dumb gets no sequences.
func TestDumbTerminal(t *testing.T) {
	f, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0) // the one end of a terminal
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	defer f.Close()
	for name, plain := range map[string]bool{"dumb": true, "xterm": false, "": false} {
		t.Setenv("TERM", name)
		p := newProgress(f)
		assert.NotNil(t, p.w, "no terminal")
		assert.Equal(t, plain, p.plain, "TERM=%s", name)
	}
}
