// Package testkit gives tests a device and runs registered operations on it.
//
// It reads the environment, which the library never does:
//
//	VKMLA_TEST_VALIDATION  core, sync or off; by default core where the validation
//	                       layer is installed. Naming it where it is not is fatal.
//	VKMLA_TEST_DEVICE      which device, as vk.Instance.Pick takes it
//	VKMLA_TEST_REQUIRE_CM  1: a test fails if a cooperative-matrix variant of f16
//	                       had to be left out (lavapipe has none of bf16)
//	VKMLA_TEST_VARIANTS    cm: tables of cases leave out what needs no cooperative matrices,
//	                       and tests that execute none are skipped
//	VKMLA_TEST_GOLDEN      a folder of further recorded vectors; an absolute path
//	VKMLA_TEST_EMULATE     a GPU of AMD's that is not there: navi21, navi31, strix_halo or
//	                       gfx1201. Tests run on RADV, whose machine code package rdna executes;
//	                       what it finds fails the test that runs.
//	VKMLA_TEST_GGUF        a folder of GGUF files with recorded values; an absolute path
//	VKMLA_TEST_SEED        seed of the random cases; by default a new one each run
//
// Because the operations' descriptions import the packages they describe, only
// external test packages (package cache_test, not package cache) can use it.
package testkit

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/internal/lab/rdna"
	"github.com/vkmla/vkmla/internal/lab/validation"
	"github.com/vkmla/vkmla/vk"
)

// shared is the one instance and device of a test binary.
var shared struct {
	once sync.Once
	in   *vk.Instance
	dev  *vk.Device
	err  error
	gpu  *rdna.Machine // that is emulated, or nil

	mu       sync.Mutex
	messages []string
}

// Device returns the device that all tests of the binary share. Any message of
// the validation layer fails the test that is running when it comes, or is seen
// to have come when it ends.
func Device(t testing.TB) *vk.Device {
	t.Helper()
	shared.once.Do(open)
	require.NoError(t, shared.err)
	report(t)
	t.Cleanup(func() { report(t) })
	return shared.dev
}

// Main runs the tests of a package, closes the shared device and counts what
// the validation layer says about that, such as an object that was left open,
// as a failure too. A package calls it from TestMain.
func Main(m *testing.M) {
	if err := emulate(); err != nil {
		fmt.Fprintln(os.Stderr, "testkit:", err)
		os.Exit(1)
	}
	code := m.Run()
	if shared.dev != nil {
		if err := shared.dev.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "testkit: close:", err)
			code = 1
		}
		shared.in.Close()
	}
	for _, text := range slices.Concat(drain(), untested()) {
		fmt.Fprintln(os.Stderr, "testkit: at the end:", text)
		code = 1
	}
	os.Exit(code)
}

func open() {
	if s := os.Getenv("VKMLA_TEST_VARIANTS"); s != "" && s != "cm" {
		shared.err = fmt.Errorf("testkit: VKMLA_TEST_VARIANTS is %q, want cm or nothing", s)
		return
	}
	v, err := validation.Choose(os.Getenv(validation.Env), door.HasValidation())
	if err != nil {
		shared.err = err
		return
	}
	shared.in, shared.err = vk.NewInstance(vk.InstanceOptions{AppName: "vkmla tests", Validation: v, OnMessage: func(m vk.Message) {
		if validation.Late(m) {
			return
		}
		shared.mu.Lock()
		defer shared.mu.Unlock()
		shared.messages = append(shared.messages, m.Text)
	}})
	if shared.err != nil {
		return
	}
	a, err := shared.in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	if err != nil {
		shared.err = err
		return
	}
	fmt.Fprintf(os.Stderr, "testkit: %s, %s %s, %s\n", a.Name, a.DriverName, a.DriverInfo, validationNames[v])
	shared.dev, shared.err = a.Open(vk.DeviceOptions{Listings: shared.gpu != nil})
	if shared.gpu != nil {
		nameKernels(shared.gpu, shared.dev)
	}
}

var validationNames = map[vk.Validation]string{
	vk.ValidationOff: "no validation", vk.ValidationCore: "core validation", vk.ValidationSync: "synchronisation validation",
}

func drain() []string {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	m := shared.messages
	shared.messages = nil
	return m
}

func report(t testing.TB) {
	for _, text := range drain() {
		t.Errorf("validation: %s", text)
	}
	if shared.gpu != nil {
		for _, f := range shared.gpu.Faults() {
			t.Error(f)
		}
	}
}
