package files

import "bytes"

// PointerWhat names a file for which IsPointer is true.
const PointerWhat = "a Git LFS pointer in place of the file (`git lfs pull` fetches that)"

// IsPointer reports whether data begin as a pointer of Git LFS does: a clone made without that
// program has such a text in place of each large file.
//
// Source: the specification of Git LFS.
func IsPointer(data []byte) bool {
	return bytes.HasPrefix(data, []byte("version https://git-lfs.github.com/spec/"))
}
