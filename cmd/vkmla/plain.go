package main

import (
	"fmt"
	"io"
)

// plainWriter writes text without what a terminal would obey: names in files and of devices are
// other people's words. Control characters but line feeds and tabs come out as \xNN.
type plainWriter struct{ w io.Writer }

func (p plainWriter) Write(text []byte) (int, error) {
	if _, err := p.w.Write(plain(text)); err != nil {
		return 0, err
	}
	return len(text), nil
}

// plain returns text itself where it has nothing to replace.
func plain(text []byte) []byte {
	var out []byte // with what was replaced so far; nil: nothing
	for i := 0; i < len(text); i++ {
		c, size := text[i], 1
		control := c < ' ' && c != '\n' && c != '\t' || c == 0x7F
		if c == 0xC2 && i+1 < len(text) && text[i+1] >= 0x80 && text[i+1] < 0xA0 { // U+0080 to U+009F
			control, size, c = true, 2, text[i+1]
		}
		if control && out == nil {
			out = append([]byte{}, text[:i]...)
		}
		switch {
		case control:
			out = fmt.Appendf(out, `\x%02x`, c)
		case out != nil:
			out = append(out, c)
		}
		i += size - 1
	}
	if out == nil {
		return text
	}
	return out
}

// keptWriter keeps the first error of writing, as not everything that writes looks at it, and calls
// stop then: the rest would be in vain.
type keptWriter struct {
	w    io.Writer
	err  error
	stop func()
}

func (k *keptWriter) Write(text []byte) (int, error) {
	n, err := k.w.Write(text)
	if err != nil && k.err == nil {
		k.err = err
		k.stop()
	}
	return n, err
}
