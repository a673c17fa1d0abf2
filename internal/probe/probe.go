// Package probe reaches what tests and measurements need of package vk, and its users do not.
package probe

// Separate makes everything that a *vk.Recorder records later wait for everything recorded before,
// even where no bytes are shared. Package vk sets it.
//
// Errors: vk.ErrClosed, vk.ErrDeviceLost.
var Separate func(recorder any) error
