package testkit

import "errors"

func start(string, []string) error { return errors.New("emulation needs Linux") }
