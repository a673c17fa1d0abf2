package replicas_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/replicas"
	"github.com/vkmla/vkmla/vk"
)

// shelf is a replica without a GPU.
type shelf struct {
	name     string
	sessions int
	lost     error // from now on
	refuses  error // when asked
}

func (s *shelf) Sessions() int { return s.sessions }
func (s *shelf) Err() error    { return s.lost }

func (s *shelf) open() (string, error) {
	if s.refuses != nil {
		return "", fmt.Errorf("%s: %w", s.name, s.refuses)
	}
	s.sessions++
	return s.name, nil
}

// TestOpen follows sessions to their replicas until none takes them.
func TestOpen(t *testing.T) {
	a, b, c := &shelf{name: "a"}, &shelf{name: "b", sessions: 1}, &shelf{name: "c"}
	list := []*shelf{a, b, c}
	opens := func(want string, n int) {
		t.Helper()
		for range n {
			got, err := replicas.Open(list, (*shelf).open)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}
	for _, want := range []string{"a", "c", "a", "b", "c"} { // fewest, then first
		opens(want, 1)
	}
	a.lost = fmt.Errorf("a: %w", vk.ErrDeviceLost)
	opens("b", 1)
	opens("c", 1)
	for _, full := range []error{pipeline.ErrTooManySessions, cache.ErrPoolFull, vk.ErrOutOfDeviceMemory, vk.ErrDeviceLost} {
		b.sessions, c.refuses = 9, full
		opens("b", 2)
	}
	require.NoError(t, replicas.Err(list))
	wrong := errors.New("a wrong prompt")
	b.sessions, b.refuses, c.sessions = 0, wrong, 1
	_, err := replicas.Open(list, (*shelf).open)
	require.EqualError(t, err, "b: a wrong prompt", "no other replica is asked")
	b.refuses = cache.ErrPoolFull
	_, err = replicas.Open(list, (*shelf).open)
	for _, kind := range []error{a.lost, cache.ErrPoolFull, c.refuses} {
		assert.ErrorIs(t, err, kind)
	}
	b.lost, c.lost = errors.New("b is lost"), errors.New("c is lost")
	_, err = replicas.Open(list, (*shelf).open)
	assert.Equal(t, replicas.Err(list), err)
	for _, kind := range []error{a.lost, b.lost, c.lost} {
		assert.ErrorIs(t, err, kind)
	}
}

func TestOpenArguments(t *testing.T) {
	_, err := replicas.Open(nil, (*shelf).open)
	assert.ErrorIs(t, err, vk.ErrArgument)
	_, err = replicas.Open[*shelf, string]([]*shelf{{}}, nil)
	assert.ErrorIs(t, err, vk.ErrArgument)
}
