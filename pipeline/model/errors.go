package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/vkmla/vkmla/vk"
)

var (
	// ErrConfig: a configuration describes no model that can be run. Every *ConfigError matches it.
	ErrConfig = errors.New("unusable configuration")
	// ErrCheckpoint: files of a checkpoint are malformed, incomplete, or do not fit the
	// configuration. Every *CheckpointError matches it.
	ErrCheckpoint = errors.New("unusable checkpoint")
	// ErrForeign: what was given is known, and not what this package reads. Every *ForeignError
	// matches it.
	ErrForeign = errors.New("not read")
)

// ConfigError says which field of a model's configuration cannot be used.
type ConfigError struct {
	Field string // name in config.json, such as "o_groups"
	Got   string // its value, or "absent"
	Want  string // what is accepted
}

// Error reads "model: config: field: got X, want Y".
func (e *ConfigError) Error() string {
	return fmt.Sprintf("model: config: %s: got %s, want %s", e.Field, e.Got, e.Want)
}

// Is reports whether target is ErrConfig.
func (e *ConfigError) Is(target error) bool { return target == ErrConfig }

// CheckpointError says which tensor of a checkpoint is missing, unexpected, or not what the model's
// configuration demands.
type CheckpointError struct {
	File   string // in the checkpoint's folder; "" for none
	Tensor string // name as stored, or as a released checkpoint would name it
	Got    string // a type and shape, a value, or "absent"
	Want   string // what is accepted
	err    error  // of the file, nil if it is well formed
}

// Error reads "model: checkpoint: file: tensor: got X, want Y".
func (e *CheckpointError) Error() string {
	where := e.Tensor
	if e.File != "" {
		where = e.File + ": " + where
	}
	if e.err != nil {
		return fmt.Sprintf("model: checkpoint: %s: %v", where, e.err)
	}
	return fmt.Sprintf("model: checkpoint: %s: got %s, want %s", where, e.Got, e.Want)
}

// Is reports whether target is ErrCheckpoint.
func (e *CheckpointError) Is(target error) bool { return target == ErrCheckpoint }

// Unwrap returns the error about the file, nil if it is well formed.
func (e *CheckpointError) Unwrap() error { return e.err }

// ForeignError says what a model is that is known, and that this package does not read.
type ForeignError struct {
	File string // in the checkpoint's folder, or config.json
	Name string // of the tensor, as stored, or of the field of config.json; "" for the whole file
	What string // such as "GGUF"
}

// Error reads "model: checkpoint: file: name: this is WHAT, which vkmla does not read".
func (e *ForeignError) Error() string {
	where := e.File
	if e.Name != "" {
		where += ": " + e.Name
	}
	return fmt.Sprintf("model: checkpoint: %s: this is %s, which vkmla does not read", where, e.What)
}

// Is reports whether target is ErrForeign, or ErrConfig for a field of config.json and
// ErrCheckpoint for anything else.
func (e *ForeignError) Is(target error) bool {
	return target == ErrForeign || target == ErrConfig && e.File == configName || target == ErrCheckpoint && e.File != configName
}

// badArgument says what is wrong with an argument of a call.
func badArgument(op, arg string, got any, want string, a ...any) error {
	return &vk.ArgumentError{Op: op, Arg: arg, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, a...)}
}

// jsonError says which field of a config.json has a value of another type.
func jsonError(err error) error {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) && typ.Field != "" {
		got := "a " + typ.Value
		switch typ.Value {
		case "array", "object":
			got = "an " + typ.Value
		case "null":
			got = typ.Value
		}
		field := strings.Replace(typ.Field, "ropeFile.", "", 1) // embedded
		return &ConfigError{field, got, wordOf(typ.Type)}
	}
	return &ConfigError{configName, err.Error(), "a JSON object"}
}

// wordOf returns what JSON has for a type of configFile.
func wordOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return wordOf(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.String || t.Elem() == reflect.TypeFor[*string]() {
			return "strings"
		}
		return "numbers"
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	}
	return "an object"
}
