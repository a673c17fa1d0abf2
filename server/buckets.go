//go:build buckets

package main

import (
	"context"

	_ "gocloud.dev/blob/s3blob" // and drivers of other stores, such as gcsblob and azureblob

	"github.com/vkmla/vkmla/pipeline/prefix"
	"github.com/vkmla/vkmla/pipeline/prefix/blob"
)

// With the drivers a program is twice as large and takes a minute to build, so the tag has to ask
// for them.
func init() {
	openBucket = func(ctx context.Context, url string) (prefix.Store, error) { return blob.Open(ctx, url) }
}
