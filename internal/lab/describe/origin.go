package describe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// Origin is where a result comes from: device, driver, program and time. It stands beside
// everything that commands write for programs.
type Origin struct {
	Device  string `json:"device"`
	Type    string `json:"type"`
	Driver  string `json:"driver"`
	API     string `json:"vulkan"`
	Profile string `json:"profile"` // of tuning
	Version string `json:"version"` // of vkmla
	Commit  string `json:"commit"`  // "" if the build did not record it; "-modified" after it if files differed
	Date    string `json:"date"`    // when it began, RFC 3339 in UTC
}

// OriginOf returns the origin of what begins now, with the tuning profile that was asked for, ""
// for the device's own.
func OriginOf(a *vk.Adapter, profile string) Origin {
	if profile == "" {
		p, _ := tuning.For(a)
		profile = p.Name
	}
	return originOf(Origin{Device: a.Name, Type: a.Type.String(), Driver: a.DriverName + " " + a.DriverInfo,
		API: a.APIVersion.String(), Profile: profile}, Running(), time.Now())
}

// Origin is that of what a program began on the device at that time.
func (d *Device) Origin(p Program, at time.Time) Origin {
	return originOf(Origin{Device: d.Name, Type: d.Type, Driver: d.Driver + " " + d.DriverInfo, API: d.APIVersion,
		Profile: d.Profile.Name}, p, at)
}

// originOf adds the program and the time.
func originOf(o Origin, p Program, at time.Time) Origin {
	o.Driver = strings.TrimSpace(o.Driver)
	o.Version, o.Commit, o.Date = p.Version, p.Commit, at.UTC().Format(time.RFC3339)
	if p.Modified {
		o.Commit += "-modified"
	}
	return o
}

// Program says in a line what made the result, and when.
func (o Origin) Program() string {
	return fmt.Sprintf("vkmla %s, commit %s, %s", o.Version, cmp.Or(o.Commit, "unknown"), o.Date)
}

// OriginColumns are the first columns of every table in CSV, and Values what stands in them.
var OriginColumns = []string{"device", "driver", "profile", "version", "commit", "date"}

// Values returns those of OriginColumns.
func (o Origin) Values() []string {
	return []string{o.Device, o.Driver, o.Profile, o.Version, o.Commit, o.Date}
}

// Row returns a row that begins with the Values.
func (o Origin) Row(more ...any) (row table.Row) {
	for _, v := range o.Values() {
		row = append(row, v)
	}
	return append(row, more...)
}

// NewCSV starts a table in CSV: OriginColumns, then these.
func NewCSV(columns ...string) table.Writer {
	t, row := table.NewWriter(), table.Row{}
	for _, c := range append(slices.Clone(OriginColumns), columns...) {
		row = append(row, c)
	}
	t.AppendHeader(row)
	return t
}
