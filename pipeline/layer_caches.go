package pipeline

import "github.com/vkmla/vkmla/pipeline/internal/layer"

// LayerCaches are the caches of one layer.
type LayerCaches = layer.Caches
