package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vkmla/vkmla/internal/lab/describe"
)

func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man",
		Short: "Print the manual page, for man",
		Long:  "Man prints the help of all commands as one manual page: vkmla man >vkmla.1",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return manual(cmd.OutOrStdout(), cmd.Root()) },
	}
}

// manual writes the help of all commands in the language of man. It has no date, so that it is the
// same each time.
func manual(w io.Writer, root *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH VKMLA 1 \"\" \"vkmla %s\" \"User Commands\"\n", describe.Running().Version)
	fmt.Fprintf(&b, ".SH NAME\nvkmla \\- %s\n", roff(root.Short))
	b.WriteString(".SH SYNOPSIS\n.B vkmla\n.I COMMAND\n[\\fIflags\\fR]\n")
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n", roff(root.Long))
	for _, cmd := range root.Commands() {
		if cmd.Hidden || cmd.Name() == "completion" || cmd.Name() == "help" {
			continue
		}
		text := cmd.Long
		if text == "" {
			text = cmd.Short
		}
		cmd.InitDefaultHelpFlag()
		flags := cmd.LocalFlags().FlagUsagesWrapped(78)
		fmt.Fprintf(&b, ".SH %s\n.nf\n%s\n\n%s.fi\n", roff(strings.ToUpper(cmd.Name())), roff(text), roff(flags))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// roff is text as man shows it: no backslash, hyphen, point or quote of it is a command.
func roff(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			b.WriteString("\\&")
		}
		b.WriteString(strings.NewReplacer("\\", "\\e", "-", "\\-").Replace(line))
	}
	return b.String()
}
