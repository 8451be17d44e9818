package verify

import (
	"cmp"
	"maps"
	"slices"
)

// ascending gives the keys of a map in order.
func ascending[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
