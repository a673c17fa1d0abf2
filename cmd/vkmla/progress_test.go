package main

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestProgress holds what is written to terminals of both kinds, and to what is none.
func TestProgress(t *testing.T) { synctest.Test(t, shown) } // no time passes

func shown(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out)
	p.show("no terminal")
	p.clear()
	assert.Empty(t, out.String())

	p = &progress{w: &out, width: 5}
	p.show("%s", "ünïcödé")
	p.clear()
	assert.Equal(t, "\rünïcö\x1b[K\r\x1b[K", out.String())

	out.Reset()
	p = &progress{w: &out, width: 40, plain: true, pause: plainPause}
	p.show("one")
	p.show("two")
	p.clear()
	p.last = p.last.Add(-plainPause)
	p.show("three")
	assert.Equal(t, "one\nthree\n", out.String(), "a plain terminal")
	p.clear()

	out.Reset()
	p = newProgress(&out)
	p.show("long") // each half minute the same
	time.Sleep(3*filePause + time.Second)
	p.clear()
	time.Sleep(3 * filePause)
	assert.Equal(t, "long\nlong\nlong\n", out.String())
}

// TestTimeLeft holds what is said of the rest.
func TestTimeLeft(t *testing.T) { synctest.Test(t, timeLeft) } // no time passes

func timeLeft(t *testing.T) {
	p := &progress{begun: time.Now().Add(-30 * time.Second)}
	assert.Equal(t, ", 30 s left", p.left(5, 10))
	assert.Equal(t, ", 5 min left", p.left(1, 11))
	for _, done := range []int{0, 9, 10} {
		assert.Empty(t, p.left(done, 10), "%d of 10", done)
	}
}

// TestBenchProgress holds that the line says which row it is and how long the rest takes, as that
// of check does.
func TestBenchProgress(t *testing.T) { synctest.Test(t, benchShown) } // no time passes

func benchShown(t *testing.T) {
	var out bytes.Buffer
	p := &benchProgress{line: &progress{w: &out, width: 78, begun: time.Now().Add(-30 * time.Second)}}
	p.Step("measuring")
	p.Rows(3, 9)
	p.Step("linear: timing")
	p.Advance(1, 2)
	assert.Equal(t, "\rmeasuring\x1b[K\r4/9, 60 s left linear: timing\x1b[K\r4/9, 60 s left linear: timing 50%\x1b[K", out.String())
}
