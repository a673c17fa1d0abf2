package describe

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
)

// TestTable holds that tables keep to the width with all their content, whatever names are long.
func TestTable(t *testing.T) {
	small := NewTable(1, "op", "empty", "us")
	small.Add([]any{"linear", "", 1.5})
	assert.Equal(t, "| op     | us  |\n| ------ | --- |\n| linear | 1.5 |", small.String())

	for _, long := range []int{1, 20, 60, 150} {
		table := NewTable(2, "op", "case", "us", "first column of many", "second column of many", "third column of many", "detail")
		for i := range 3 {
			table.Add([]any{strings.Repeat("o", long), fmt.Sprint(strings.Repeat("ü", long), i), 3.25, "a", strings.Repeat("word ", long),
				strings.Repeat("x", long), []string{"", "why|it failed", ""}[i]})
		}
		text := table.String()
		for line := range strings.SplitSeq(text, "\n") {
			assert.LessOrEqual(t, utf8.RuneCountInString(line), Width, line)
			assert.True(t, line == "" || strings.HasPrefix(line, "| ") && strings.HasSuffix(line, " |"), line)
		}
		assert.Equal(t, 3*strings.Count(text, "| first"), strings.Count(text, "| a "), "each row once")
		assert.Equal(t, 3*long, strings.Count(text, "x"))
		assert.Equal(t, 3*long, strings.Count(text, "word"))
		assert.Contains(t, text, "why/it")
		assert.Contains(t, text, "3.25")
	}
}

// TestWrap holds where lines of text are broken.
func TestWrap(t *testing.T) {
	long := strings.Repeat("word ", 30)
	got := Wrap("short\n"+long, "  ")
	assert.Equal(t, "short\n"+strings.TrimSpace(strings.Repeat("word ", 20))+"\n  "+strings.TrimSpace(strings.Repeat("word ", 10)), got)
	assert.Equal(t, "one  two", Wrap("one  two", ""))
}

// TestIndented holds where lines of info are broken, and that help for a narrow terminal keeps its
// paragraphs and columns.
func TestIndented(t *testing.T) {
	assert.Equal(t, "one two", Indented("one  two", 23))
	word, gap := strings.Repeat("x", 40), "\n"+strings.Repeat(" ", 23)
	assert.Equal(t, word+gap+word+gap+word+" y", Indented(word+" "+word+" "+word+" y", 23))
	help := "Some words\nof a paragraph.\n\n  name   what it is,\n         and more " + word + "\n  other  " + word + " " + word + "\n"
	assert.Equal(t, help, Refit(help))
	defer Fit(Width)
	Fit(1)
	want := "Some words of a paragraph.\n\n  name   what it is, and more\n         " + word +
		"\n  other  " + word + "\n         " + word + "\n"
	assert.Equal(t, want, Refit(help))
}
