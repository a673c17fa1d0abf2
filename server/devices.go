package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vkmla/vkmla/pipeline/prefix"
	"github.com/vkmla/vkmla/pipeline/replicas"
	"github.com/vkmla/vkmla/server/batch"
	"github.com/vkmla/vkmla/server/model"
	"github.com/vkmla/vkmla/vk"
)

// host is a device with a model of its own, and the scheduler of its requests. Files of weights are
// mapped once for all, so experts on the processor take no more memory than with one device.
type host struct {
	dev       *vk.Device
	m         *model.Model
	scheduler *batch.Scheduler
	prefixes  *model.Prefixes // nil: none
}

// hosts are the server's devices. A request stays on the one where it began.
type hosts []*host

// divide takes the first of --devices, and of the cores what is for each.
func (o *options) divide() error {
	if o.devices == "" {
		return nil
	}
	list, err := selectors(o.devices, o.device)
	if err != nil {
		return err
	}
	o.device, o.further = list[0], list[1:]
	o.workers = max(1, cmp.Or(o.workers, runtime.NumCPU())/len(list))
	return nil
}

// serve opens the model on the further devices and listens.
func serve(ctx context.Context, o options, log *slog.Logger, dev *vk.Device, m *model.Model) error {
	return o.serveOn(ctx, log, hosts{{dev: dev, m: m}})
}

func (o options) serveOn(ctx context.Context, log *slog.Logger, list hosts) error {
	if len(o.further) == 0 {
		return listen(ctx, o, log, list)
	}
	next := o
	next.device, next.further = o.further[0], o.further[1:]
	return next.with(ctx, log, func(dev *vk.Device, m *model.Model) error {
		return next.serveOn(ctx, log, append(list, &host{dev: dev, m: m}))
	})
}

// selectors are devices as --device takes them: those of a list, or with all every one of the kind
// that --device would take.
func selectors(devices, device string) ([]string, error) {
	if devices != "all" {
		list := strings.Split(devices, ",")
		for _, s := range list {
			if s == "" {
				return nil, fmt.Errorf("server: --devices: got %q, want all, or names, indices or UUIDs with commas between", devices)
			}
		}
		return list, nil
	}
	instance, err := vk.NewInstance(vk.InstanceOptions{AppName: "server"})
	if err != nil {
		return nil, err
	}
	defer instance.Close()
	first, err := instance.Pick(device)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, a := range instance.Adapters() {
		if a.Type == first.Type && a.Usable() == nil {
			list = append(list, strconv.Itoa(a.Index))
		}
	}
	return list, nil
}

// register returns the registerer for the metrics of device i: of several, with its place in the
// list.
func (list hosts) register(r prometheus.Registerer, i int) prometheus.Registerer {
	if len(list) == 1 {
		return r
	}
	return prometheus.WrapRegistererWith(prometheus.Labels{"device": strconv.Itoa(i)}, r)
}

// begin starts the scheduler.
func (h *host) begin(ctx context.Context, o options, log *slog.Logger, r prometheus.Registerer) (err error) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "vkmla_device_bytes", Help: "Device memory of sequences and steps."},
		func() float64 { return float64(h.m.CacheBytes()) }))
	r.MustRegister(engineMetrics(h.m)...)
	options := batch.Options{Vocab: h.m.Config.Vocab, MaxTokens: o.tokens, MaxSessions: o.sessions,
		MaxStep: o.step, MaxWaiting: o.waiting, Drafter: h.m, Drafts: o.drafts, Log: log, Metrics: batch.NewMetrics(r)}
	if o.warm {
		options.Warm = h.m.Sizes()
		h.m.Touch(ctx)
	}
	if o.prefixes.store != nil {
		h.prefixes, err = h.m.Prefixes(o.prefixes.store, prefix.Options{Key: o.prefixes.key, Timeout: o.prefixes.timeout, Log: log})
		if err != nil {
			return err
		}
		options.Prefixes, options.KeepEvery = h.prefixes, o.prefixes.every
		r.MustRegister(counters(h.prefixes)...)
	}
	h.scheduler = batch.New(h.m, options)
	return nil
}

// Err returns why the host takes no requests, nil while it does.
func (h *host) Err() error { return errors.Join(h.dev.Err(), h.scheduler.Err()) }

// Sessions returns the number of requests that have not ended.
func (h *host) Sessions() int { return h.scheduler.Load() }

// submit gives a request to the host that has the fewest.
//
// Errors: those of batch.Scheduler.Submit; where no host can take requests, those of all.
func (list hosts) submit(ctx context.Context, r batch.Request) (*batch.Answer, error) {
	return replicas.Open(list, func(h *host) (*batch.Answer, error) { return h.scheduler.Submit(ctx, r) })
}

// warming says that some sizes of steps were not taken yet.
func (list hosts) warming() error {
	done, all := 0, 0
	for _, h := range list {
		d, n := h.scheduler.Warming()
		done, all = done+d, all+n
	}
	if done == all {
		return nil
	}
	return fmt.Errorf("warming %d of %d", done, all)
}

// close lets requests finish until the context ends.
func (list hosts) close(ctx context.Context) error {
	errs := make([]error, len(list))
	var group sync.WaitGroup
	for i, h := range list {
		group.Go(func() {
			if h.scheduler != nil {
				errs[i] = h.scheduler.Close(ctx)
			}
			if h.prefixes != nil {
				h.prefixes.Close()
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}
