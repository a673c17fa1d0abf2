package rdna

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

typedef void (*mapped_fn)(uint64_t address, uint64_t size, void *host);
typedef void (*submit_fn)(uint64_t address, uint32_t bytes);
extern void rdnaMapped(uint64_t address, uint64_t size, void *host);
extern void rdnaSubmit(uint64_t address, uint32_t bytes);

static int attach(void) {
	void (*emulate)(mapped_fn, submit_fn) = (void (*)(mapped_fn, submit_fn))dlsym(RTLD_DEFAULT, "vkmla_emulate");
	if (emulate)
		emulate(rdnaMapped, rdnaSubmit);
	return emulate != NULL;
}

static void *(*create)(const char *, const char *, const char *, void *, int, void *, void *);
static size_t (*one)(void *, uint8_t *, uint64_t, uint64_t, char *, size_t);

static int open_llvm(const char *path) {
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return 0;
	const char *init[] = {"LLVMInitializeAMDGPUTargetInfo", "LLVMInitializeAMDGPUTargetMC", "LLVMInitializeAMDGPUDisassembler"};
	for (int i = 0; i < 3; i++) {
		void (*f)(void) = (void (*)(void))dlsym(lib, init[i]);
		if (!f)
			return 0;
		f();
	}
	create = (void *(*)(const char *, const char *, const char *, void *, int, void *, void *))dlsym(lib, "LLVMCreateDisasmCPUFeatures");
	one = (size_t (*)(void *, uint8_t *, uint64_t, uint64_t, char *, size_t))dlsym(lib, "LLVMDisasmInstruction");
	return create && one;
}

static void *disassembler(const char *cpu, const char *features) {
	return create("amdgcn-mesa-mesa3d", cpu, features, NULL, 0, NULL, NULL);
}

static size_t disassemble(void *d, void *code, uint64_t n, char *text, size_t room) {
	return one(d, code, n, 0, text, room);
}
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"unsafe"
)

// attach registers the machine of this process with interpose.c; false: it was not preloaded.
func attach() bool { return C.attach() != 0 }

//export rdnaMapped
func rdnaMapped(address, size C.uint64_t, host unsafe.Pointer) {
	machine.mapped(uint64(address), uint64(size), host)
}

//export rdnaSubmit
func rdnaSubmit(address C.uint64_t, bytes C.uint32_t) { machine.submit(uint64(address), int(bytes)/4) }

// llvm is RADV's own disassembler for one GPU and size of waves.
type llvm struct{ handle unsafe.Pointer }

var libLLVM = regexp.MustCompile(`(?m)\S*/libLLVM[^/\n]*$`)

// newLLVM opens the libLLVM that the driver has loaded.
func newLLVM(cpu string, lanes int) (*llvm, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	path := C.CString(libLLVM.FindString(string(maps)))
	defer C.free(unsafe.Pointer(path))
	if *path == 0 || C.open_llvm(path) == 0 {
		return nil, errors.New("rdna: the driver has loaded no libLLVM with AMDGPU's disassembler")
	}
	features := fmt.Sprintf("+wavefrontsize%d", lanes)
	if !strings.HasPrefix(cpu, "gfx10") {
		features += ",+real-true16"
	}
	c, f := C.CString(cpu), C.CString(features)
	defer C.free(unsafe.Pointer(c))
	defer C.free(unsafe.Pointer(f))
	d := C.disassembler(c, f)
	if d == nil {
		return nil, fmt.Errorf("rdna: libLLVM has no disassembler for %s", cpu)
	}
	return &llvm{d}, nil
}

// instruction returns the text of the first instruction of code, and how many words it has; none
// where there is no instruction.
func (l *llvm) instruction(code []uint32) (string, int) {
	var text [512]byte
	to := (*C.char)(unsafe.Pointer(&text[0]))
	n := C.disassemble(l.handle, unsafe.Pointer(&code[0]), C.uint64_t(4*len(code)), to, C.size_t(len(text)))
	s := C.GoString(to)
	return strings.TrimSpace(strings.ReplaceAll(s, "\t", " ")), int(n) / 4
}
