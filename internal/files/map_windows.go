package files

import (
	"os"
	"syscall"
	"unsafe"
)

// Map maps the first n bytes of a file for reading. They are read within Guard. The view holds the
// mapping, which holds the file: neither handle has to stay open.
func Map(f *os.File, n int) ([]byte, error) {
	mapping, err := syscall.CreateFileMapping(syscall.Handle(f.Fd()), nil, syscall.PAGE_READONLY, 0, 0, nil)
	if err != nil {
		return nil, os.NewSyscallError("CreateFileMapping", err)
	}
	defer syscall.CloseHandle(mapping)
	view, err := syscall.MapViewOfFile(mapping, syscall.FILE_MAP_READ, 0, 0, uintptr(n))
	if err != nil {
		return nil, os.NewSyscallError("MapViewOfFile", err)
	}
	// The address is of no Go object, which is what vet asks of a direct conversion.
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&view)), n), nil
}

// Unmap ends a mapping.
func Unmap(data []byte) error {
	return os.NewSyscallError("UnmapViewOfFile", syscall.UnmapViewOfFile(uintptr(unsafe.Pointer(unsafe.SliceData(data)))))
}
