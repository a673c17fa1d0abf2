package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/sizes"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

// planLong precedes the flags in --help.
var planLong = `Plan says how many sessions of a checkpoint's attention fit on a device, or with --sessions
whether that many do, before anything is allocated. It reads the checkpoint's headers, not
its weights. What is free is what the driver tells now, or else the size of the device's
memory, or what --memory says; --reserve keeps some of it for the rest of the model and for
other programs. What a driver takes for kernels and commands is not counted.

With --device-like the plan is for a device that is not here, of a kind whose limits are known:
so a laptop, or a machine without any Vulkan device, plans for a card. It needs --memory, since
cards of a kind differ in that. Kinds are:

` + likeNames + `

--model may also be flash, pro or v41-flash: the released model as its configuration says, FP8
weights. Caches have the model's own records; --store says others.

  weights   of the attention of all layers
  caches    of all sessions at their full length, and of a step of --step tokens
  steps     what passes between operations, hidden states, tables, for all sizes of steps;
            what of it lies in the host's memory counts where the device has no other

A row that no free memory would help, as one beyond what a descriptor or the model holds, says why.

EngineOptions with MaxTokens --context, MaxSessions, MaxStep --step, and MaxCacheBytes the
column caches give an engine that takes no more.

Exit status: 0 if it fits, 1 if in a row it does not, 2 if plan could not do its work.`

type planFlags struct {
	model, store            string
	device, profile, output string
	like                    string
	contexts, sessions      []int
	step                    int
	ranks                   int
	reserve                 uint64
	memory                  string
	bytes                   uint64 // of memory
	byLayer, drafts         bool
	draft                   string
}

// planRow is a context with a number of sessions.
type planRow struct {
	Context  int    `json:"context"`  // tokens of a session
	Sessions int    `json:"sessions"` // that fit, or that were asked for
	Session  uint64 `json:"session_bytes"`
	Caches   uint64 `json:"cache_bytes"`
	Weights  uint64 `json:"weight_bytes"`
	Steps    uint64 `json:"step_bytes"`
	Total    uint64 `json:"total_bytes"`
	Free     uint64 `json:"free_bytes"`
	Fits     bool   `json:"fits"`
	Problem  string `json:"problem,omitempty"` // why it does not fit whatever is free
}

func planCommand() *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Say how many sessions fit on a device",
		Long:  planLong,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runPlan(cmd.Context(), f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.model, "model", "", "folder of a checkpoint, config.json and safetensors; a .gguf file; or flash, pro, v41-flash")
	fl.StringVar(&f.store, "store", "", "in what bytes caches are kept: v4 or v41 (default the model's own)")
	fl.Var(&numbers{list: &f.contexts}, "context", "tokens of a session")
	fl.Var(&numbers{list: &f.sessions}, "sessions", "sessions (default as many as fit)")
	fl.IntVar(&f.step, "step", 2048, "most tokens of a step")
	fl.IntVar(&f.ranks, "ranks", 1, "devices that share heads; the plan is for one of them")
	fl.Uint64Var(&f.reserve, "reserve", 0, "MiB of the free memory that are for others")
	fl.StringVar(&f.memory, "memory", "", "free memory to plan for, as 24GiB or 80GB, in place of this device's")
	fl.StringVar(&f.like, "device-like", "", "plan for a device of this kind, which need not be here; with --memory")
	fl.BoolVar(&f.byLayer, "layer-by-layer", false, "for an engine with LayerByLayer or Between: one tensor of hidden states")
	fl.BoolVar(&f.drafts, "drafts", false, "with the layers that draft or predict ahead, mtp.*")
	fl.StringVar(&f.draft, "draft", "", "with the layers of a draft block in a .gguf file of its own")
	fl.StringVarP(&f.output, "output", "o", "table", "table, json or csv")
	deviceFlags(fl, &f.device, &f.profile)
	return cmd
}

func (f *planFlags) check() error {
	bad := func(arg string, got any, want string) error {
		return &vk.ArgumentError{Op: "plan", Arg: arg, Got: fmt.Sprint(got), Want: want}
	}
	var ok bool
	f.bytes, ok = sizes.Parse(f.memory)
	switch {
	case f.memory != "" && !ok:
		return bad("memory", strconv.Quote(f.memory), sizes.Wanted)
	case f.model == "":
		return bad("model", "none", "the folder of a checkpoint")
	case len(f.contexts) == 0:
		return bad("context", "none", "the tokens of a session")
	case !slices.Contains([]string{"table", "json", "csv"}, f.output):
		return bad("output", strconv.Quote(f.output), "table, json or csv")
	case slices.ContainsFunc(f.contexts, func(n int) bool { return n < 1 }):
		return bad("context", "0", "at least 1")
	case slices.ContainsFunc(f.sessions, func(n int) bool { return n < 1 }):
		return bad("sessions", "0", "at least 1")
	case f.like != "" && f.memory == "":
		return bad("memory", "none", "the free memory of the device that is like "+f.like+", as 24GiB")
	case f.like != "" && f.device != "":
		return bad("device-like", strconv.Quote(f.like), "none beside --device")
	case f.reserve > 1<<30:
		return bad("reserve", f.reserve, "MiB, at most 2^30")
	}
	return nil
}

func runPlan(ctx context.Context, f planFlags, stdout, stderr io.Writer) error {
	if err := f.check(); err != nil {
		return err
	}
	store, err := storeOf("plan", f.store)
	if err != nil {
		return err
	}
	cfg, layers, err := f.layers(stderr)
	if err != nil {
		return err
	}
	dev, close, err := f.open()
	if err != nil {
		return err
	}
	defer close()
	p := planner{planFlags: f, dev: dev, cfg: cfg, layers: layers, records: store}
	p.free, p.shared = freeMemory(dev)
	if f.memory != "" {
		p.free = f.bytes
	}
	p.free -= min(p.free, f.reserve<<20)
	rows, err := p.rows(ctx)
	if err != nil {
		return err
	}
	if err := writePlan(stdout, f.output, describe.OriginOf(dev.Adapter(), f.profile), rows); err != nil {
		return fmt.Errorf("plan: output: %w", err)
	}
	if slices.ContainsFunc(rows, func(r planRow) bool { return !r.Fits }) {
		return errWrong
	}
	return nil
}

// likeNames are the kinds of --device-like, in lines.
var likeNames = func() string {
	var names []string
	for _, d := range knowncaps.Owned() {
		names = append(names, d.Name)
	}
	var b strings.Builder
	for line := range strings.Lines(text.WrapSoft(strings.Join(names, "; "), 96)) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return strings.TrimSpace(b.String())
}()

// open returns the device to plan for: that which was chosen, or one like another.
func (f *planFlags) open() (dev *vk.Device, close func(), err error) {
	if f.like == "" {
		if dev, close, err = openDevice(f.device, f.profile); errors.Is(err, vk.ErrNoDevice) || errors.Is(err, vk.ErrNoLoader) {
			err = fmt.Errorf("%w; --device-like plans for one that is not here", err)
		}
		return dev, close, err
	}
	if err := checkProfile(f.profile); err != nil {
		return nil, nil, err
	}
	for _, d := range knowncaps.Owned() {
		if strings.EqualFold(d.Name, f.like) {
			a := &vk.Adapter{Name: "a device like " + d.Name, Type: d.Type, Caps: d.Caps, Driver: d.Driver, DriverName: "not here",
				Facts: &opkit.Facts{Layout: d.Layout, Rows: d.Rows}}
			dev := a.Absent(vk.DeviceOptions{Profile: f.profile})
			return dev, func() { dev.Close() }, nil
		}
	}
	return nil, nil, &vk.ArgumentError{Op: "plan", Arg: "device-like", Got: strconv.Quote(f.like),
		Want: "one of " + strings.Join(strings.Fields(likeNames), " ")}
}

// released are models that are planned for without a checkpoint.
var released = map[string]func() model.Config{"flash": model.FlashConfig, "pro": model.ProConfig,
	"v41-flash": func() model.Config { return model.FlashV41Config().WithDrafts(3) }}

// layers returns the model's, without memory, and says on stderr what of it is left out.
func (f *planFlags) layers(stderr io.Writer) (cfg model.Config, layers []*model.DeviceLayer, err error) {
	of := released[f.model]
	with := f.drafts || f.draft != ""
	switch {
	case of != nil && f.draft != "":
		err = &vk.ArgumentError{Op: "plan", Arg: "draft", Got: f.draft, Want: "the checkpoint that it drafts for as --model"}
	case of != nil:
		cfg = of()
	case with:
		cfg, err = model.LoadConfigWithDrafts(f.model, f.draft)
	default:
		cfg, err = model.LoadConfig(f.model)
	}
	if err != nil {
		return cfg, nil, err
	}
	var list []int
	drafts := false
	for i, l := range cfg.Layers {
		if !l.Draft || with {
			list = append(list, i)
		}
		drafts = drafts || l.Draft
	}
	if with && !drafts {
		return cfg, nil, &vk.ArgumentError{Op: "plan", Arg: "drafts", Got: "true", Want: "a model with layers that draft"}
	}
	if of != nil {
		layers, err = cfg.Plan(projection.FormatFP8, f.ranks, list...)
		return cfg, layers, err
	}
	c, err := model.Open(f.model, model.CheckpointOptions{Ranks: f.ranks, Layers: list, Drafts: f.draft})
	if err != nil {
		return cfg, nil, err
	}
	tellOfImages(stderr, c)
	layers, err = c.Plan()
	return c.Config, layers, errors.Join(err, c.Close())
}

// freeMemory returns what is free of the device's largest memory, and whether the host has no
// other.
func freeMemory(dev *vk.Device) (free uint64, shared bool) {
	heaps, budget, at := dev.Caps().Heaps, dev.MemoryBudget(), -1
	shared = len(heaps) > 0 || dev.Adapter().Type != vk.TypeDiscrete
	for i, h := range heaps {
		shared = shared && h.DeviceLocal
		if h.DeviceLocal && (at < 0 || h.Bytes > heaps[at].Bytes) {
			at = i
		}
	}
	switch {
	case at < 0:
		return 0, shared
	case budget == nil:
		return heaps[at].Bytes, shared
	}
	return budget[at].Free(), shared
}

// planner finds out what engines would take.
type planner struct {
	planFlags
	dev     *vk.Device
	cfg     model.Config
	layers  []*model.DeviceLayer
	records model.Records // 0: the model's own
	free    uint64
	shared  bool
}

// rows returns the contexts, each with the sessions that were asked for or fit.
func (p *planner) rows(ctx context.Context) (list []planRow, err error) {
	if _, err := p.row(ctx, 1, 1); err != nil {
		return nil, err // whatever the context
	}
	for _, context := range p.contexts {
		counts := p.sessions
		if len(counts) == 0 {
			n, err := p.most(ctx, context)
			if err != nil {
				return nil, err
			}
			counts = []int{n}
		}
		for _, n := range counts {
			r, err := p.row(ctx, context, n)
			if err != nil && (ctx.Err() != nil || !errors.Is(err, vk.ErrArgument)) {
				return nil, err
			}
			if err != nil {
				r = planRow{Context: context, Sessions: n, Free: p.free, Problem: err.Error()}
			}
			list = append(list, r)
		}
	}
	return list, nil
}

// row returns what a number of sessions takes.
func (p *planner) row(ctx context.Context, context, sessions int) (r planRow, err error) {
	o := pipeline.EngineOptions{MaxTokens: context, MaxSessions: sessions, MaxStep: p.step, LayerByLayer: p.byLayer,
		Records: p.records}
	m, err := o.Estimate(ctx, p.dev, p.cfg, p.layers, slices.Repeat([]int{context}, sessions)...)
	if err != nil {
		return r, err
	}
	r = planRow{Context: context, Sessions: sessions, Session: m.Held / uint64(sessions), Caches: m.Caches, Weights: m.Weights,
		Steps: m.Steps + m.Hidden + m.Tables + m.Workspace, Free: p.free}
	if !p.shared {
		r.Steps -= m.Host
	}
	r.Total = r.Caches + r.Weights + r.Steps
	r.Fits = r.Total <= r.Free
	return r, nil
}

// mostSessions is more than anybody runs on a device, and what an engine takes.
const mostSessions = 1 << 16

// most returns how many sessions fit, 1 if none does.
func (p *planner) most(ctx context.Context, context int) (int, error) {
	fits, no := 1, mostSessions+1
	for n := 2; no-fits > 1; {
		r, err := p.row(ctx, context, n)
		// A device takes fewer sessions than an engine may have, if a descriptor is too small for
		// more block tables; one session has told what else is wrong.
		limited := n > 1 && errors.Is(err, vk.ErrArgument)
		switch {
		case err != nil && !limited:
			return 0, err
		case err == nil && r.Fits:
			fits = n
			// As many as the rest has room for, by what these take on average beside weights.
			n = min(no-1, n+max(1, int((r.Free-r.Total)/max(1, (r.Caches+r.Steps)/uint64(n)))))
			continue
		}
		no = n
		n = fits + (no-fits)/2
	}
	return fits, nil
}

func writePlan(w io.Writer, output string, origin describe.Origin, rows []planRow) error {
	switch output {
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(struct {
			describe.Origin
			Program describe.Program `json:"program"`
			Rows    []planRow        `json:"rows"`
		}{origin, describe.Running(), rows})
	case "csv":
		_, err := fmt.Fprintln(w, planCSV(origin, rows).RenderCSV())
		return err
	}
	t := describe.NewTable(2, "context", "sessions", "of a session", "caches", "weights", "steps", "in all", "free", "fits")
	problems := ""
	for _, r := range rows {
		fits := map[bool]string{true: "yes", false: "no"}[r.Fits]
		row := []any{r.Context, r.Sessions}
		for _, n := range r.sizes() {
			row = append(row, describe.Bytes(n))
		}
		if r.Problem != "" {
			row = []any{r.Context, r.Sessions, "-", "-", "-", "-", "-"}
			problems += fmt.Sprintf("\ncontext %d, sessions %d: %s\n", r.Context, r.Sessions, r.Problem)
		}
		t.Add(append(row, describe.Bytes(r.Free), fits))
	}
	about := describe.Wrap(origin.Device+", "+origin.Driver+"\n"+origin.Program(), "  ")
	_, err := fmt.Fprintf(w, "%s\n\n%s\n%s", about, t,
		describe.Wrap(problems, "  "))
	return err
}

// sizes returns the columns of bytes that sessions take.
func (r planRow) sizes() []uint64 { return []uint64{r.Session, r.Caches, r.Weights, r.Steps, r.Total} }

func planCSV(origin describe.Origin, rows []planRow) table.Writer {
	t := describe.NewCSV("context", "sessions", "session_bytes", "cache_bytes", "weight_bytes", "step_bytes", "total_bytes", "free_bytes",
		"fits", "problem")
	for _, r := range rows {
		row := origin.Row(r.Context, r.Sessions)
		for _, n := range r.sizes() {
			if r.Problem == "" {
				row = append(row, n)
			} else {
				row = append(row, "")
			}
		}
		t.AppendRow(append(row, r.Free, r.Fits, r.Problem))
	}
	return t
}
