package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"time"

	"github.com/vkmla/vkmla/server/random"
)

// writeRandom is the command random.
func writeRandom(ctx context.Context, args []string, log *slog.Logger) error {
	f := flag.NewFlagSet("server random", flag.ContinueOnError)
	dir := f.String("dir", "", "folder to write to")
	width := f.String("width", "flash", "as wide as a released model, flash or pro, or small or, without --gguf, tiny")
	layers := f.Int("layers", 0, "the first layers only, 3.6 GB each of flash, 13.8 GB of pro; 0: all")
	kind := f.String("gguf", "", "GGUF instead of safetensors, with the types of a file of q2_k_s, iq2_xxs (ds4's, in one file) or mxfp4")
	drafts := f.Bool("drafts", false, "add a block that drafts, as V4-Flash-0731 has it; with --gguf in draft/draft.gguf")
	seed := f.Uint64("seed", 1, "the same seed gives the same bytes")
	if err := parseFlags(f, args, "Random writes a checkpoint with random weights.\n"); err != nil {
		return err
	}
	if *dir == "" {
		return errors.New("server: random: --dir: got none, want a folder to write to")
	}
	c, err := random.Config(*width, *layers)
	if err != nil {
		return err
	}
	if *drafts {
		c = random.WithDrafts(c)
	}
	began := time.Now()
	write := func() (int64, error) { return random.Write(ctx, *dir, c, *seed) }
	if *kind != "" {
		write = func() (int64, error) { return random.WriteGGUF(ctx, *dir, *kind, c, *seed) }
	}
	size, err := write()
	took := time.Since(began)
	if err == nil {
		gb := float64(size) / 1e9
		log.Info("written", "folder", *dir, "layers", len(c.Layers), "GB", gb, "time", took, "GB/s", gb/took.Seconds())
	}
	return err
}
