// Package blob is a store of prefixes in a bucket of an object store: S3 and what speaks its
// language, Google's, Azure's, and others that Go CDK has a driver for. It is a module of its own,
// so that who keeps prefixes in a folder needs none of them.
//
//	import _ "gocloud.dev/blob/s3blob" // and drivers of other stores
//	...
//	store, err := blob.Open(ctx, "s3://bucket?region=eu-central-1&prefix=vkmla/")
//	...
//	k, err := prefix.New(engine, store, prefix.Options{Parallel: 32})
//
// A bucket has no limit of its own: let a lifecycle rule of the store remove objects some days
// after they were made. What is gone is computed and put again.
package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/vkmla/vkmla/pipeline/prefix"
)

// Store keeps each object of a prefix as an object of a bucket.
type Store struct{ bucket *blob.Bucket }

var _ prefix.Store = (*Store)(nil)

var errNone = errors.New("blob: no bucket")

// Open opens the bucket of a URL, as blob.OpenBucket of Go CDK does. The driver has to be imported.
func Open(ctx context.Context, url string) (*Store, error) {
	b, err := blob.OpenBucket(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("blob: open: %w", err)
	}
	return &Store{b}, nil
}

// New makes a store of a bucket that is open already.
func New(b *blob.Bucket) *Store { return &Store{b} }

// Close closes the bucket. Closing none does nothing.
func (s *Store) Close() error {
	if s == nil || s.bucket == nil {
		return nil
	}
	return s.bucket.Close()
}

func (s *Store) usable(ctx context.Context) error {
	if s == nil || s.bucket == nil {
		return errNone
	}
	if ctx == nil {
		return errors.New("blob: no context")
	}
	return ctx.Err()
}

// Get reads an object.
func (s *Store) Get(ctx context.Context, name string, most int) ([]byte, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	r, err := s.bucket.NewReader(ctx, name, nil)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, fmt.Errorf("blob: get %s: %w", name, fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("blob: get %s: %w", name, err)
	}
	defer r.Close()
	if r.Size() > int64(most) {
		return nil, fmt.Errorf("blob: get %s: %w: %d bytes, want at most %d", name, prefix.ErrDamaged, r.Size(), most)
	}
	data := make([]byte, r.Size())
	_, err = io.ReadFull(r, data)
	if err != nil {
		return nil, fmt.Errorf("blob: get %s: %w", name, err)
	}
	return data, nil
}

// Has asks for an object's attributes.
func (s *Store) Has(ctx context.Context, name string) (bool, error) {
	if err := s.usable(ctx); err != nil {
		return false, err
	}
	there, err := s.bucket.Exists(ctx, name)
	if err != nil {
		return false, fmt.Errorf("blob: has %s: %w", name, err)
	}
	return there, nil
}

// Put writes an object. It appears when all of it is there.
func (s *Store) Put(ctx context.Context, name string, data []byte) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	if err := s.bucket.WriteAll(ctx, name, data, &blob.WriterOptions{ContentType: "application/octet-stream"}); err != nil {
		return fmt.Errorf("blob: put %s: %w", name, err)
	}
	return nil
}
