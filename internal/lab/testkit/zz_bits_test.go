package testkit

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/vk"
)

func TestZZBits(t *testing.T) {
	out := os.Getenv("BITS_OUT")
	if out == "" {
		t.Skip()
	}
	f, err := os.Create(out)
	require.NoError(t, err)
	defer f.Close()
	dev := Device(t)
	for _, name := range []string{"linear", "linear_chain", "linear_norm"} {
		op, ok := verify.Lookup(name)
		require.True(t, ok, name)
		for _, c := range op.Random(7) {
			for _, v := range op.Variants {
				if op.Lacks != nil && op.Lacks(c, v.Name) {
					continue
				}
				got, err := op.Run(t.Context(), dev, v.Name, c)
				if errors.Is(err, vk.ErrMissingFeature) {
					continue
				}
				if err != nil {
					fmt.Fprintln(f, name, c.Name, v.Name, err)
					continue
				}
				h := sha256.New()
				for _, k := range slices.Sorted(maps.Keys(got)) {
					h.Write(got[k].Data)
				}
				fmt.Fprintf(f, "%s %s %s %x\n", name, c.Name, v.Name, h.Sum(nil)[:8])
			}
		}
	}
}
