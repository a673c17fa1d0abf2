package indexer_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/vk"
)

func TestStats(t *testing.T) {
	in, err := vk.NewInstance(vk.InstanceOptions{})
	require.NoError(t, err)
	defer in.Close()
	for _, vkx := range []string{"", "prompt=1", "prompt=1,score=1", "prompt=1,four=1"} {
		a := in.Adapters()[0]
		dev, err := a.Open(vk.DeviceOptions{Statistics: true})
		require.NoError(t, err)
		os.Setenv("VKX", vkx)
		heads := 64
		if a.Type == vk.TypeCPU {
			heads = 16
		}
		for _, f := range indexFormats {
			_, err = indexer.NewLogits(dev, indexer.LogitsConfig{Heads: heads, Format: f, Page: 64})
			require.NoError(t, err)
		}
		_ = cache.IndexKeyFP8
		for _, k := range dev.Kernels() {
			s, err := dev.Statistics(k)
			fmt.Println(vkx, k.Name(), k.Constants(), s, err)
		}
		os.Setenv("VKX", "")
		dev.Close()
	}
}
