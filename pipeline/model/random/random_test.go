package random_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/pipeline/model/random"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

// TestWrite demands a checkpoint of the configuration, the same for the same seed.
func TestWrite(t *testing.T) {
	var ids []model.Identity
	for _, seed := range []uint64{1, 1, 2} {
		c := random.Config(0, 128, 4, 4)
		c.Hidden, c.Window, c.Eps = 128, 32, 1e-5
		dir := t.TempDir()
		require.NoError(t, random.Write(dir, c, seed))
		got, err := model.Open(dir, model.CheckpointOptions{})
		require.NoError(t, err)
		got.Config.Quantization = c.Quantization
		assert.Equal(t, c, got.Config)
		id, err := got.Layers[2].Identity()
		require.NoError(t, err)
		ids = append(ids, id)
		require.NoError(t, got.Close())
	}
	assert.Equal(t, ids[0], ids[1])
	assert.NotEqual(t, ids[0], ids[2])
	assert.ErrorIs(t, random.Write(t.TempDir(), model.Config{}, 1), model.ErrConfig)
	assert.ErrorIs(t, random.Write("/does/not/exist", random.Config(), 1), os.ErrNotExist)
}

// A checkpoint of DeepSeek-V4.1 is read as what it was made of.
func TestWriteV41(t *testing.T) {
	c, dir := random.V41Config(), t.TempDir()
	require.NoError(t, random.Write(dir, c, 1))
	got, err := model.Open(dir, model.CheckpointOptions{})
	require.NoError(t, err)
	defer got.Close()
	got.Config.Quantization = c.Quantization
	assert.Equal(t, c, got.Config)
	assert.Len(t, got.Layers, len(c.Layers))
}

// A configuration says of its weights what a checkpoint of it does.
func TestPlan(t *testing.T) {
	for _, c := range []model.Config{random.Config(0, 128, 4), random.V41Config()} {
		dir := t.TempDir()
		require.NoError(t, random.Write(dir, c, 1))
		for ranks := range 3 {
			got, err := c.Plan(projection.FormatBF16, ranks)
			if ranks == 0 {
				require.ErrorIs(t, err, vk.ErrArgument)
				continue
			}
			require.NoError(t, err)
			checkpoint, err := model.Open(dir, model.CheckpointOptions{Ranks: ranks})
			require.NoError(t, err)
			want, err := checkpoint.Plan()
			require.NoError(t, err)
			assert.Equal(t, want, got)
			require.NoError(t, checkpoint.Close())
		}
	}
	_, err := random.Config().Plan(projection.FormatFP8Rows, 1)
	require.ErrorIs(t, err, vk.ErrArgument)
	_, err = model.Config{}.Plan(projection.FormatBF16, 1)
	require.ErrorIs(t, err, model.ErrConfig)
}

// A released model's weights of FP8 take a byte each, and a scale for a block.
func TestPlanReleased(t *testing.T) {
	sum := func(c model.Config, format projection.Format) (n uint64) {
		layers, err := c.Plan(format, 1)
		require.NoError(t, err)
		for _, l := range layers {
			n += l.Bytes()
		}
		return n
	}
	c := model.FlashV41Config()
	quantised := 40*(1280*5120+512*5120+32768*1280+8192*4096+5120*8192) + 8*4096*1280
	others := 2 * (7*512*5120 + 4*128*512 + 8*32*5120)
	assert.InEpsilon(t, float64(quantised)*(1+1.0/1024)+float64(others), float64(sum(c, projection.FormatFP8)), 1e-3)
	assert.InEpsilon(t, float64(2*quantised+others), float64(sum(c, projection.FormatBF16)), 1e-3)
	assert.InEpsilon(t, float64(quantised)*9/16+float64(others), float64(sum(c, projection.FormatNVFP4)), 1e-3)
}

// A checkpoint for a server's tests.
func ExampleWrite() {
	dir, err := os.MkdirTemp("", "model")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	if err := random.Write(dir, random.Config(0, 4), 1); err != nil {
		fmt.Println(err)
		return
	}
	c, err := model.Open(dir, model.CheckpointOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	fmt.Println(len(c.Layers), "layers,", c.Config.Hidden, "wide")
	// Output: 2 layers, 192 wide
}
