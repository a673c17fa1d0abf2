package sizes

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]uint64{"24GiB": 24 << 30, "80 GB": 80e9, "0.5gib": 1 << 29, "8MB": 8e6, "1kB": 1000,
		"3KiB": 3 << 10, "5MiB": 5 << 20, "1048576TiB": 1 << 60, "2tb": 2e12} {
		got, ok := Parse(text)
		assert.True(t, ok, text)
		assert.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "24", "24B", "24G", "GiB", "-1GB", "+1GB", "1XB", "1e3GB", "NaN", "24GiBs", "24  GB", " 24GB",
		"0GB", "0.0001kB", "1048577TiB", strings.Repeat("9", 400) + "GB"} {
		_, ok := Parse(text)
		assert.False(t, ok, text)
	}
}
