// Package arch has no code, only tests of how the repository is put together:
// which package may import which, which files belong together, and what no file
// may contain.
package arch
