package pipelines

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// Whatever AMD's GPUs are given has its patterns of shared memory, if it has any, and each
// attention, selection, product and compressor of the model's has a kernel with an estimate.
func TestNoneIsLeftOut(t *testing.T) {
	gpus := 0
	for _, d := range knowncaps.Owned() {
		if !strings.HasPrefix(d.Name, "RDNA") || d.Driver != vk.DriverRADV {
			continue
		}
		gpus++
		a := testkit.AdapterAs(t, d)
		knowMatrices(a)
		open := func() (*vk.Device, error) { return a.Open(vk.DeviceOptions{}) }
		list, err := Choose(open, nil)
		require.NoError(t, err)
		all, err := chooseOf(layer(model.FlashConfig()), open, nil)
		require.NoError(t, err)
		wholeLayer(t, d.Name, all)
		for i := range list {
			c, estimated := &list[i], 0
			for j := range c.Kernels {
				k := &c.Kernels[j]
				s, err := shaders.Get(k.Kernel)
				require.NoError(t, err)
				m, err := spirv.Parse(s.SPIRV)
				require.NoError(t, err)
				bytes, err := m.SharedBytes(k.Constants...)
				require.NoError(t, err)
				assert.Equal(t, bytes > 0, patterns(k.Kernel, k.numbers()) != nil, "%s: %s%v has %d bytes of shared memory",
					d.Name, k.Kernel, k.Constants, bytes)
				if task, _ := c.task(k); task != nil {
					estimated++
				}
			}
			hot := false
			for _, name := range []string{"decode", "prefill", "selection", "product", "compressor"} {
				hot = hot || strings.HasPrefix(strings.TrimPrefix(c.Op, "v4.1 "), name)
			}
			hot = hot && d.Name != "RDNA1" // without dot products, and no GPU of the model
			assert.True(t, !hot || estimated > 0, "%s: %s of %d tokens", d.Name, c.Op, c.Tokens)
		}
	}
	assert.GreaterOrEqual(t, gpus, 4)
}

// wholeLayer holds that all of a layer has an estimate, for each number of tokens, and that each of
// its products has the weights of one.
func wholeLayer(t *testing.T, gpu string, all []Choice) {
	weights := map[int]int{}
	for i := range all {
		c := &all[i]
		require.NoError(t, c.Missing, "%s: %s", gpu, c.Op)
		for j := range c.Kernels {
			if task, _ := c.task(&c.Kernels[j]); gpu != "RDNA1" { // which is no GPU of the model
				assert.NotNil(t, task, "%s: %s of %d tokens: %s", gpu, c.Op, c.Tokens, c.Kernels[j].Kernel)
			}
		}
		if strings.HasPrefix(c.Op, "product") {
			weights[c.Tokens] += c.launch().bytes
		}
	}
	m := model.FlashConfig()
	// 512 numbers of a KV row, 128 of an index head; inputs and gates of two overlapping windows.
	fp8 := m.Hidden*(m.QRank+512) + m.QRank*(m.Heads*512+m.IndexHeads*128) + 512*m.Heads*m.ORank + m.Groups*m.ORank*m.Hidden
	bf16 := m.Hidden * (4*512 + 4*128 + m.IndexHeads)
	require.Len(t, weights, 2)
	for tokens, got := range weights {
		assert.InEpsilon(t, fp8+2*bf16, got, 1e-3, "%s: %d tokens", gpu, tokens)
	}
}

// TestModelMultiplies holds the turns of the model against the products that operations need: the
// listings have as many, and up to a 20th more in what comes before loops. It wants
// RADV with VKMLA_TEST_COMPILE_ONLY=1.
func TestModelMultiplies(t *testing.T) {
	if os.Getenv("VKMLA_TEST_COMPILE_ONLY") != "1" {
		t.Skip("wants a driver that only compiles")
	}
	in, err := vk.NewInstance(vk.InstanceOptions{AppName: "vkmla tests"})
	require.NoError(t, err)
	defer in.Close()
	a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
	if a.Driver != vk.DriverRADV {
		t.Skipf("%s is not RADV's", a.Name)
	}
	list, err := Inspect(a, "", true)
	require.NoError(t, err)
	seen := 0
	for i := range list {
		c := &list[i]
		for j := range c.Kernels {
			k := &c.Kernels[j]
			task, l := c.task(k)
			if all := k.Listing.All; task == nil || all.Matrix+all.Dot == 0 || c.Tokens < 4096 {
				continue
			}
			needs := 2 * l.heads * l.rows * 512 // multiply-adds of a token
			if l.entries > 0 {
				needs = l.heads * l.entries * 128
			} else if l.k > 0 {
				needs = l.rows * l.k
			}
			has := k.Listing.sum(task.turns(l), func(n Counts) float64 { return float64(n.Matrix*16*16*16 + n.Dot*32*2) })
			ratio := has * float64(task.groups(l)*l.of["THREADS"]/32) / float64(needs) / float64(c.Tokens)
			seen++
			assert.True(t, ratio > 0.999 && ratio < 1.05, "%s: %s has %.3f of the products it needs", c.Op, k.Kernel, ratio)
		}
	}
	assert.GreaterOrEqual(t, seen, 8)
}
