// Command vkmla runs, checks and times the sparse attention of DeepSeek-V4 on a
// Vulkan device.
//
//	vkmla info         what devices there are and what runs on them
//	vkmla check        check a device in a minute or two and write a report
//	vkmla verify       check every operation on a device against its definition
//	vkmla run          run the attention layers of a checkpoint
//	vkmla bench        time attention, the indexer, whole layers or whole steps
//	vkmla pipelines    compile every kernel and show what the driver made of it
//	vkmla version      print version, commit and system
//	vkmla man          print the manual page
//	vkmla completion   print what a shell needs to complete commands, flags and values
//
// Exit status: 0 if everything asked for succeeded; 1 if a result is wrong or
// missing; 2 if the command could not do its work; 3 if check found nothing
// wrong, but something did not end in time.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signal.Ignore(syscall.SIGPIPE) // an error of writing says it
	if stdoutClosed() {
		os.Stdout.Close()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() {
		<-ctx.Done()
		stop() // a second signal ends the process, whatever a driver's call waits for
	}()
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
