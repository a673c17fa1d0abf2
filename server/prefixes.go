package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vkmla/vkmla/pipeline/prefix"
	"github.com/vkmla/vkmla/server/model"
)

// prefixOptions say where computed prompts are kept.
type prefixOptions struct {
	where, keyFile string
	gib            int64
	every          int
	timeout        time.Duration
	store          prefix.Store // nil: none
	key            []byte
}

func (o *prefixOptions) flags(f *flag.FlagSet) {
	f.StringVar(&o.where, "prefix", "",
		"folder that keeps computed prompts, for several servers, too; or a bucket's URL (built with -tags buckets)")
	f.Int64Var(&o.gib, "prefix-gib", 64, "most of that folder, in GiB")
	f.IntVar(&o.every, "prefix-every", 2048, "tokens after which a prompt or answer is kept before its end, too; 0: none")
	f.DurationVar(&o.timeout, "prefix-timeout", 30*time.Second, "how long a request may wait for what was kept")
	f.StringVar(&o.keyFile, "prefix-key", "", "file with a secret that all servers share: others can neither forge nor guess what is kept")
}

func (o *prefixOptions) check() error {
	switch {
	case o.gib < 1 || o.gib > 1<<30:
		return fmt.Errorf("server: --prefix-gib: got %d, want 1 to %d", o.gib, 1<<30)
	case o.every < 0:
		return fmt.Errorf("server: --prefix-every: got %d, want at least 0", o.every)
	case o.timeout <= 0:
		return fmt.Errorf("server: --prefix-timeout: got %v, want more than 0", o.timeout)
	}
	return nil
}

// openBucket opens a store by its URL; nil where the program was built without.
var openBucket func(ctx context.Context, url string) (prefix.Store, error)

// open opens the store of --prefix and reads its key.
func (o *prefixOptions) open(ctx context.Context, log *slog.Logger) (err error) {
	if o.where == "" {
		return nil
	}
	if o.keyFile != "" {
		if o.key, err = os.ReadFile(o.keyFile); err == nil && len(o.key) == 0 {
			err = fmt.Errorf("got %s, which is empty, want a secret", o.keyFile)
		}
		if err != nil {
			return fmt.Errorf("server: --prefix-key: %w", err)
		}
	}
	if u, bad := url.Parse(o.where); bad == nil && len(u.Scheme) > 1 { // C: is a disk
		if openBucket == nil {
			return errors.New("server: --prefix: got a URL, want a folder, or a server built with -tags buckets")
		}
		o.store, err = openBucket(ctx, o.where)
		return err
	}
	folder, err := prefix.OpenFolder(o.where, o.gib<<30)
	if err != nil {
		return fmt.Errorf("server: --prefix: %w", err)
	}
	if why := folder.ReadOnly(); why != nil {
		log.Warn("prompts are found in the folder, and none are kept", "folder", o.where, "error", why)
	}
	o.store = folder
	return nil
}

// counters returns the metrics of the store.
func counters(p *model.Prefixes) (list []prometheus.Collector) {
	for _, c := range []struct {
		name, help string
		of         func(prefix.Stats) uint64
	}{
		{"vkmla_prefix_asked_tokens_total", "Tokens of requests that were looked up.", func(s prefix.Stats) uint64 { return s.Asked }},
		{"vkmla_prefix_found_tokens_total", "Tokens that were there.", func(s prefix.Stats) uint64 { return s.Found }},
		{"vkmla_prefix_loaded_bytes_total", "Bytes loaded.", func(s prefix.Stats) uint64 { return s.Loaded }},
		{"vkmla_prefix_stored_bytes_total", "Bytes stored.", func(s prefix.Stats) uint64 { return s.Stored }},
		{"vkmla_prefix_damaged_total", "Objects that were damaged.", func(s prefix.Stats) uint64 { return s.Damaged }},
		{"vkmla_prefix_failures_total", "Calls of the store that failed.", func(s prefix.Stats) uint64 { return s.Failed }},
	} {
		list = append(list, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: c.name, Help: c.help},
			func() float64 { return float64(c.of(p.Stats())) }))
	}
	return list
}
