// Attention shows how a server runs the attention of a DeepSeek-V4 checkpoint: open a
// device, load the weights, prefill a sequence, decode.
//
//	go run ./examples/attention --model DIR
//	go run ./examples/attention --random
//
// With --random it writes a small checkpoint with random weights, to try it without one.
//
// The rest of the model (embedding, norms, experts) is the server's own. Here random
// hidden states and an addition stand for it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/pipeline/model/random"
	"github.com/vkmla/vkmla/vk"
)

func main() {
	model := flag.String("model", "", "folder of a checkpoint: config.json and safetensors")
	random := flag.Bool("random", false, "a small checkpoint with random weights, in a temporary folder, instead")
	device := flag.String("device", "", "index, part of the name, or UUID; by default the first GPU")
	prompt := flag.Int("prompt", 300, "tokens to prefill")
	tokens := flag.Int("tokens", 3, "tokens to decode")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, remove, err := checkpointFolder(*model, *random)
	if err == nil {
		err = errors.Join(run(ctx, os.Stdout, *device, dir, *prompt, *tokens), remove())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// checkpointFolder is the folder of the checkpoint that the arguments ask for, and what is
// to be done when it is not needed any more.
func checkpointFolder(model string, made bool) (dir string, remove func() error, err error) {
	switch {
	case made && model != "":
		return "", nil, fmt.Errorf("attention: --random: got --model %q too, want one of them", model)
	case model != "":
		return model, func() error { return nil }, nil
	case !made:
		return "", nil, errors.New("attention: --model: got none, want the folder of a checkpoint, or --random")
	}
	if dir, err = os.MkdirTemp("", "attention"); err != nil {
		return "", nil, fmt.Errorf("attention: --random: %w", err)
	}
	remove = func() error { return os.RemoveAll(dir) }
	if err = random.Write(dir, random.Config(), 2); err != nil {
		return "", nil, errors.Join(fmt.Errorf("attention: --random: %w", err), remove())
	}
	return dir, remove, nil
}

func run(ctx context.Context, out io.Writer, device, folder string, prompt, tokens int) error {
	// A device.
	instance, err := vk.NewInstance(vk.InstanceOptions{AppName: "attention example"})
	if err != nil {
		return err
	}
	defer instance.Close()
	adapter, err := instance.Pick(device)
	if err != nil {
		return err
	}
	dev, err := adapter.Open(vk.DeviceOptions{})
	if err != nil {
		return err
	}
	defer dev.Close()

	// The attention weights of all layers, on the device as they are stored.
	checkpoint, err := model.Open(folder, model.CheckpointOptions{})
	if err != nil {
		return err
	}
	defer checkpoint.Close()
	layers, err := checkpoint.Upload(ctx, dev, nil)
	if err != nil {
		return err
	}
	defer func() {
		for _, l := range layers {
			l.Close()
		}
	}()

	// An engine for them: caches that grow up to a limit, block tables, recorded commands.
	engine, err := pipeline.NewEngine(ctx, dev, checkpoint.Config, layers, pipeline.EngineOptions{
		MaxTokens: prompt + tokens, MaxSessions: 8, MaxStep: 128, LayerByLayer: true})
	if err != nil {
		return err
	}
	defer engine.Close()

	// A sequence: chunks of its prompt, then a token at a time.
	session, err := engine.Open()
	if err != nil {
		return err
	}
	m := &server{engine: engine, layers: len(layers), hidden: checkpoint.Config.Hidden, rng: rand.New(rand.NewPCG(1, 1))}
	for session.Len() < prompt+tokens {
		n := 1
		if left := prompt - session.Len(); left > 0 {
			n = min(left, 128)
		}
		x, err := m.step(ctx, session, n)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "tokens %d to %d: the last one's hidden state has length %.3f\n",
			session.Len()-n, session.Len()-1, length(x[(n-1)*m.hidden:]))
	}
	fmt.Fprintf(out, "%d layers on %s, %d MiB\n", len(layers), adapter.Name, engine.Memory().Total()>>20)
	return nil
}

// server stands for all that is not attention.
type server struct {
	engine         *pipeline.Engine
	layers, hidden int
	rng            *rand.Rand
}

// step runs the next n tokens of a session through the model. A step may have tokens of
// several sessions; here it has those of one.
func (m *server) step(ctx context.Context, s *pipeline.Session, n int) ([]float32, error) {
	st, err := m.engine.Begin(ctx, pipeline.Chunk{Session: s, Tokens: n})
	if err != nil {
		return nil, err
	}
	defer st.Abort() // does nothing after Commit

	x, attention := m.embed(n), make([]float32, n*m.hidden)
	for i := range m.layers {
		// A server with hidden states on the device writes st.Input(i), and reads
		// st.Output(i), instead.
		if err := st.SetInput(i, 0, m.norm(x)); err != nil {
			return nil, err
		}
		if err := st.RunLayer(ctx, i); err != nil {
			return nil, err
		}
		if err := st.ReadOutput(i, 0, attention); err != nil {
			return nil, err
		}
		for k := range x {
			x[k] += attention[k] // and then the experts
		}
	}
	return x, st.Commit() // only now has the session n tokens more
}

// embed stands for the embedding of n tokens: [n, Hidden].
func (m *server) embed(n int) []float32 {
	x := make([]float32, n*m.hidden)
	for i := range x {
		x[i] = float32(m.rng.NormFloat64())
	}
	return x
}

// norm is a layer's input norm, without a weight.
func (m *server) norm(x []float32) []float32 {
	y := make([]float32, len(x))
	for at := 0; at < len(x); at += m.hidden {
		row := x[at : at+m.hidden]
		scale := float32(math.Sqrt(float64(m.hidden)) / length(row))
		for i, v := range row {
			y[at+i] = v * scale
		}
	}
	return y
}

func length(x []float32) float64 {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	return math.Sqrt(sum)
}
