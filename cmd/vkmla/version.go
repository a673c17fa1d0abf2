package main

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/vk"
)

func versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print version, commit and system",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return &vk.ArgumentError{Op: "version", Arg: "output", Got: strconv.Quote(output), Want: "table or json"}
			}
			if output == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(describe.Running())
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "vkmla", describe.Running())
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}
