package describe

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Program is what was run, and where.
type Program struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"` // "" if the build did not record it
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	CPUs     int    `json:"cpus"`
}

// Running is this program, as its build recorded it.
func Running() Program {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{Main: debug.Module{Version: "unknown"}}
	}
	return programOf(info)
}

func programOf(info *debug.BuildInfo) Program {
	p := Program{Version: info.Main.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU()}
	if p.Version == "" {
		p.Version = "(devel)"
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			p.Commit = s.Value
		case "vcs.modified":
			p.Modified = s.Value == "true"
		}
	}
	return p
}

// String returns the version and what else says where the program came from, in a line.
func (p Program) String() string {
	s := p.Version
	if p.Commit != "" {
		s += ", commit " + p.Commit[:min(12, len(p.Commit))]
	}
	if p.Modified {
		s += ", modified"
	}
	return fmt.Sprintf("%s, %s %s/%s", s, p.Go, p.OS, p.Arch)
}
