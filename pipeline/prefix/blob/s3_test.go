//go:build buckets

package blob_test

import _ "gocloud.dev/blob/s3blob" // takes a minute to build
