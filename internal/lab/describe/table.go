package describe

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Width is the largest number of columns of text for people. A command sets it to those of its
// terminal by Fit.
var Width = widest

const (
	widest    = 100
	narrowest = 60
)

// Fit sets Width for a terminal of some columns. Fewer than 60 count as 60, in which tables still
// have room, and more than 100 as 100.
func Fit(columns int) { Width = min(max(columns, narrowest), widest) }

// Table is a table of Markdown for people, no wider than Width. What is wider goes on in further
// tables, each after the columns that tell rows apart. Columns without content are left out.
type Table struct {
	keys    int
	columns []string
	rows    [][]string
}

// NewTable returns a table with these columns. The first `keys` of them tell rows apart.
func NewTable(keys int, columns ...string) *Table { return &Table{keys: keys, columns: columns} }

// Add adds a row.
func (t *Table) Add(cells []any) {
	row := make([]string, len(t.columns))
	for i, c := range cells {
		row[i] = strings.ReplaceAll(strings.Join(strings.Fields(fmt.Sprint(c)), " "), "|", "/")
	}
	t.rows = append(t.rows, row)
}

// String returns the tables, without a line's end after the last.
func (t *Table) String() string {
	t = t.filled()
	widths := make([]int, len(t.columns))
	for i := range t.columns {
		widths[i] = t.width(i)
	}
	total := func(columns []int) (sum int) {
		for _, i := range columns {
			sum += widths[i] + 3
		}
		return sum + 1
	}
	var keys []int
	for i := range t.keys {
		keys = append(keys, i)
	}
	for total(keys) > Width*3/5 { // others need room beside them
		most := slices.Index(widths, slices.Max(widths[:t.keys]))
		widths[most]--
	}
	for i := t.keys; i < len(widths); i++ {
		widths[i] = min(widths[i], Width-total(keys)-3)
	}
	part, b := slices.Clone(keys), strings.Builder{}
	for i := t.keys; i < len(widths); i++ {
		if len(part) > len(keys) && total(append(part, i)) > Width {
			t.write(&b, part, widths)
			part = slices.Clone(keys)
		}
		part = append(part, i)
	}
	t.write(&b, part, widths)
	return strings.TrimRight(b.String(), "\n")
}

// filled returns the table without columns that have no content.
func (t *Table) filled() *Table {
	var keep []int
	out := &Table{}
	for i, c := range t.columns {
		if len(t.rows) == 0 || slices.ContainsFunc(t.rows, func(row []string) bool { return row[i] != "" }) {
			keep, out.columns = append(keep, i), append(out.columns, c)
			if i < t.keys {
				out.keys++
			}
		}
	}
	for _, row := range t.rows {
		var cells []string
		for _, i := range keep {
			cells = append(cells, row[i])
		}
		out.rows = append(out.rows, cells)
	}
	return out
}

func (t *Table) width(column int) int {
	w := utf8.RuneCountInString(t.columns[column])
	for _, row := range t.rows {
		w = max(w, utf8.RuneCountInString(row[column]))
	}
	return max(w, 3)
}

// write writes a table of some columns. After the first table it leaves out rows that have content
// in their keys alone.
func (t *Table) write(b *strings.Builder, part []int, widths []int) {
	line := func(cell func(i int) string) {
		for _, i := range part {
			fmt.Fprintf(b, "| %-*s ", widths[i], cell(i))
		}
		b.WriteString("|\n")
	}
	first := b.Len() == 0
	if !first {
		b.WriteByte('\n')
	}
	broken := func(row []string) {
		lines, most := map[int][]string{}, 1
		for _, i := range part {
			lines[i] = strings.Split(wrap(row[i], "", widths[i], true), "\n")
			most = max(most, len(lines[i]))
		}
		for n := range most {
			line(func(i int) string {
				if n < len(lines[i]) {
					return lines[i][n]
				}
				return ""
			})
		}
	}
	broken(t.columns)
	line(func(i int) string { return strings.Repeat("-", widths[i]) })
	for _, row := range t.rows {
		if first || slices.ContainsFunc(part[min(t.keys, len(part)):], func(i int) bool { return row[i] != "" }) {
			broken(row)
		}
	}
}

// Wrap breaks lines that are wider than Width between words, and begins those after the first with
// indent.
func Wrap(text, indent string) string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		if utf8.RuneCountInString(line) > Width {
			line = wrap(line, indent, Width, false)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// Indented breaks text between words, and words that are wider than the rest of a line, too. Lines
// after the first begin with indent spaces, and the first has as many columns less.
func Indented(text string, indent int) string {
	return strings.ReplaceAll(wrap(text, "", Width-indent, true), "\n", "\n"+strings.Repeat(" ", indent))
}

// Refit breaks text that was written for the widest terminals anew for a narrower one. Lines with
// no indent make paragraphs. An indented one hangs from where its last column begins, and those
// that begin there belong to it.
func Refit(text string) string {
	if Width == widest {
		return text
	}
	var out []string
	prefix, entry := "", []string{}
	flush := func() {
		if len(entry) > 0 {
			out = append(out, prefix+Indented(strings.Join(entry, " "), utf8.RuneCountInString(prefix)))
		}
		entry = nil
	}
	for line := range strings.SplitSeq(text, "\n") {
		body := strings.TrimLeft(line, " ")
		lead := len(line) - len(body)
		if body != "" && len(entry) > 0 && lead == len(prefix) && (lead == 0 || strings.TrimSpace(prefix) != "") {
			entry = append(entry, body)
			continue
		}
		flush()
		if body == "" {
			out = append(out, "")
			continue
		}
		hang := lead
		if at := strings.LastIndex(body, "  "); lead > 0 && at >= 0 {
			hang += at + 2
		}
		prefix, entry = line[:hang], []string{line[hang:]}
	}
	flush()
	return strings.Join(out, "\n")
}

// wrap breaks a line between words, and words, too, if hard and they are wider.
func wrap(line, indent string, width int, hard bool) string {
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(line) {
		n := utf8.RuneCountInString(word)
		if column > 0 && column+1+n > width {
			b.WriteString("\n" + indent)
			column = len(indent)
		} else if column > 0 {
			b.WriteByte(' ')
			column++
		}
		for hard && n > width {
			cut := string([]rune(word)[:width])
			b.WriteString(cut + "\n")
			word = word[len(cut):]
			n = utf8.RuneCountInString(word)
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

// Bytes writes a size with a unit, such as "1.5 GiB".
func Bytes(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	x, i := float64(n), 0
	for x >= 1024 && i < len(units)-1 {
		x, i = x/1024, i+1
	}
	return fmt.Sprintf("%.4g %s", x, units[i])
}
