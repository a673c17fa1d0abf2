package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/vk"
)

// startWorkerName is the command that the suite start runs in processes of their own.
const startWorkerName = "start-worker"

func startWorkerCommand() *cobra.Command {
	var device, profile string
	cmd := &cobra.Command{
		Use:    startWorkerName + " FOLDER",
		Short:  "What bench runs in processes of their own",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return bench.StartWorker(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), func() (*vk.Device, func(), error) {
				return openDeviceWith(device, vk.DeviceOptions{PipelineCacheDir: args[0], Profile: profile})
			})
		},
	}
	deviceFlags(cmd.Flags(), &device, &profile)
	return cmd
}

// starts runs the suite start.
func (f benchFlags) starts(ctx context.Context, dev *vk.Device, p *benchProgress, add func(bench.StartRow)) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("bench: start: %w", err)
	}
	return bench.Starts(ctx, dev, bench.StartOptions{LayerOptions: f.layerOptions(),
		Worker: []string{self, startWorkerName, "--device=" + f.device, "--profile=" + f.profile, "--"}}, p, add)
}
