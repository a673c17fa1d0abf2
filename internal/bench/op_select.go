package bench

import (
	"github.com/vkmla/vkmla/cache"
)

func selectCases(op string, o IndexerOptions, format cache.IndexKeyFormat) (cases []opCase) {
	return nil
}

func compressCases(op string, o IndexerOptions) (cases []opCase) { return nil }
